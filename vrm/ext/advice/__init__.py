"""Which rules, and which allocation, would serve the jobs better."""
