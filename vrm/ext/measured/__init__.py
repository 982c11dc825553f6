"""Measured values of programs: files of heatmaps and of run times, and the speed of jobs that share nodes."""
