"""The manager of a live run: its queue, scheduling decisions, jobs and their records."""
