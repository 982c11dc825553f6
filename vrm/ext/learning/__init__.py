"""Learning from the user's own runs: the store of ended jobs, wasted resources, numbers of ranks, bad nodes and
neighbours."""
