"""The journal of a run: its records, and reading them back into the past of the run."""
