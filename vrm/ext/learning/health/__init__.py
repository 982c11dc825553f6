"""Which nodes fail jobs or slow them: a sequential test of the user's own jobs, a probe, quarantine."""
