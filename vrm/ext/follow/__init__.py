"""Follows a job from the command line: its output and its end."""
