"""Working on a cluster that is reached by ssh: `vrm --on HOST`."""
