"""Finds what an earlier manager of the run left, and continues it."""
