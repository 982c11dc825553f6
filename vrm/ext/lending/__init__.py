"""Running jobs lend cores: how they are moved, how programs follow, which ones can, and the backfilling `sd`."""
