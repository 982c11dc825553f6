"""Keeps one connection to each node of a run, which carries everything that is started there."""
