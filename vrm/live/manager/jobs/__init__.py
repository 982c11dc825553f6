"""The jobs of a live run: how they are submitted, launched, followed and ended."""
