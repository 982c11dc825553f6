"""The commands `vrm log` and `vrm wait`."""
