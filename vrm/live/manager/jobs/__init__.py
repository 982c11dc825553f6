"""Jobs of a live run: they come in, are launched, are followed, and end."""
