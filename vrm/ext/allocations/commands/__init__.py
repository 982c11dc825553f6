"""The commands of the allocations extension, one file each."""
