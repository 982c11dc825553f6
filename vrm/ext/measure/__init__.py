"""Measurements that need no manager: heatmaps, run time estimates, energy, and builds of the benchmarks."""
