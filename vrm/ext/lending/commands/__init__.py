"""Commands about programs that lend cores, a file each."""
