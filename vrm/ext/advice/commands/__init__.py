"""Commands that advise, a file each."""
