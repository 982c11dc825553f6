"""Sources of jobs: growing or recorded queue files, generators and traces."""
