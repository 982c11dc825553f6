"""The set-up of a live run, and the checks of what it needs."""
