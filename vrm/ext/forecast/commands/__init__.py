"""Commands about what will be, a file each."""
