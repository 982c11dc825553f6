"""Commands of what is learned, a file each."""
