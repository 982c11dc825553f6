"""Commands for measurements, one module each."""
