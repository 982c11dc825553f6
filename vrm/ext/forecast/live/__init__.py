"""Forecasts during a run: the part of the manager, and the process beside it."""
