"""Validates the simulator: simulates a live run again and reports how much the results differ."""
