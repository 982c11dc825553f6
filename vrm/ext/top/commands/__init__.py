"""`vrm top`: the command, and its screen."""
