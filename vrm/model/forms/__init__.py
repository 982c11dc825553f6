"""Fields of jobs, and forms of values in files."""
