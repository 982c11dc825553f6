"""Nodes that are kept for some jobs for a time: `vrm reserve`, and the part of the manager that keeps them."""
