"""Commands of PBS, answered by vrm: names, options and forms that people and tools know."""
