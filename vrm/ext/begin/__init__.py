"""Commands used before the first run: they write a configuration, a queue and a batch script, and check them."""
