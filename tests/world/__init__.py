"""The real manager in a simulated world: see docs/reliability.md."""
