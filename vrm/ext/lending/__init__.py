"""Running jobs lend cores to waiting jobs: moving cores, programs that follow their cores, checking programs, and
the backfilling policy `sd`."""
