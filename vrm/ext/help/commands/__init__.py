"""Commands that help, a file each."""
