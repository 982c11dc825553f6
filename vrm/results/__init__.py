"""What is known of jobs that ended: lines of `jobs.csv`, metrics, statistics."""
