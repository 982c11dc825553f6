"""Lending in simulations: lends recorded in live runs, workloads of malleable jobs, and statistics of shared cores."""
