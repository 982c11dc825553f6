"""Starts the processes of jobs and follows them to their end."""
