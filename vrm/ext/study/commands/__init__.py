"""Commands of studies, a file each."""
