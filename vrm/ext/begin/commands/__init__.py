"""Commands for the beginning, a file each."""
