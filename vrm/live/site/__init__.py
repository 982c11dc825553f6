"""What a live run stands on: set-up, and what is wrong with it."""
