"""Advance reservations of nodes for some jobs: `vrm reserve`, and the manager's part for it."""
