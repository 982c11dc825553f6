"""Finds the request to the batch system that ends the user's jobs first (docs/how-to/allocations.md)."""
