"""Detection of nodes that fail or slow jobs: a sequential test on the user's own jobs, a probe, and quarantine."""
