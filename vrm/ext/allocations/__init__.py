"""Which request to the batch system ends the user's jobs first (docs/how-to/allocations.md)."""
