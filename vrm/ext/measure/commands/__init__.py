"""Commands that measure, a file each."""
