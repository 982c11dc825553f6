"""A job is followed from the command line: what it prints, and its end."""
