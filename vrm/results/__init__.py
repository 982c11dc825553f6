"""Data about ended jobs: lines of `jobs.csv`, metrics, statistics."""
