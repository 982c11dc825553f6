"""The commands that give advice, one file each."""
