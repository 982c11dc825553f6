"""What an earlier manager of the run has left is found, and goes on."""
