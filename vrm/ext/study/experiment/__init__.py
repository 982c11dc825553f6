"""Experiments: many runs of many scenarios on many queues, live or simulated, planned in one file."""
