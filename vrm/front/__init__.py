"""Commands of other batch systems, answered by vrm: names, options and forms that people and tools know."""
