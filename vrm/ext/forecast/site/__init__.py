"""Forecasts of the batch system around: its queue, read as a snapshot."""
