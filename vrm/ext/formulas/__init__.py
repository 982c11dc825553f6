"""Orderings that are written: expressions of q t n procs s id."""
