"""Jobs that start on cores that running jobs lend: the backfilling `sd`, and the check whether a program can lend."""
