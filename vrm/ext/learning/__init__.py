"""What vrm learns from the user's own runs: the store of ended jobs, waste, widths, nodes and neighbours."""
