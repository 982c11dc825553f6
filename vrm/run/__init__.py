"""The state of a run, its journal and its directory, and commands to its manager."""
