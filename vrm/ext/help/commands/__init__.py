"""Commands that help users, one file each."""
