"""The commands of the learning extension, one file each."""
