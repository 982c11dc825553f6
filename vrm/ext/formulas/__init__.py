"""Orderings written as expressions of q t n procs s id."""
