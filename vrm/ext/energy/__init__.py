"""Jobs on the nodes and at the frequency that time and energy want: the backfilling `eamc`."""
