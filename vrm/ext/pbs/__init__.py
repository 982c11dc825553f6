"""PBS's commands, answered by vrm with PBS's names, options and formats."""
