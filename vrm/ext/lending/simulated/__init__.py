"""Lending in simulations: recorded lends, workloads of malleable jobs, and what jobs shared."""
