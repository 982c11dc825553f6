"""Before the first run: a configuration, a queue and a batch script are written, and all of it is checked."""
