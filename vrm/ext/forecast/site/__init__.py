"""Forecasts of the batch system around vrm, from a snapshot of its queue."""
