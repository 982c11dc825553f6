"""Energy of jobs, measured and limited: frequencies of cores, the cap on power, and the backfilling `eamc`."""
