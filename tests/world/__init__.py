"""Tests the real manager in a simulated world: see docs/reference/reliability.md."""
