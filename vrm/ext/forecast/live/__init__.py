"""Forecasts during a run: the manager's part, and its background process."""
