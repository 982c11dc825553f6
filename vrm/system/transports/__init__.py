"""Transports, which start programs on other nodes: a file for each."""
