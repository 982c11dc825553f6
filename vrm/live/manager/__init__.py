"""The manager: queue, decisions, jobs and their records, on the wall clock."""
