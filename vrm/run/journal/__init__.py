"""The journal of a run: what is written, and the past that it tells."""
