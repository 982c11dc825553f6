"""What Slurm calls things, and the forms in which it writes them."""
