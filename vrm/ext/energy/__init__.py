"""Energy of jobs, measured and limited: their frequencies, the cap on power, and the backfilling `eamc`."""
