"""Advice on which scheduling rules, and which allocation size, would serve the jobs better."""
