"""Fields of jobs, and the formats of values in files."""
