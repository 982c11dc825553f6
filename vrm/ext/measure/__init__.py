"""Measurements that need no manager: heatmaps, estimates, builds of the benchmarks."""
