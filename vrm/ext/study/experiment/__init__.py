"""Experiments: many runs of many scenarios on many queues, planned in one file, live or simulated."""
