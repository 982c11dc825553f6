"""Jobs that start on cores that running jobs lend: the backfilling `sd`."""
