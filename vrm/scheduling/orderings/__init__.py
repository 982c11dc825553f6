"""The waiting jobs, and the order in which they start."""
