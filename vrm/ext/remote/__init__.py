"""A cluster that is reached by ssh: `vrm --on HOST`."""
