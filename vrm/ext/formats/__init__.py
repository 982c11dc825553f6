"""Workload formats besides vrm's own and SWF: dumps of sacct, accounting logs of PBS, traces of Eurora, tables."""
