"""The commands of the forecast extension, one file each."""
