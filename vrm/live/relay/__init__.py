"""One connection to each node of a run, for all that is started there."""
