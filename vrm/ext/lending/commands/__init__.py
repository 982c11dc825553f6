"""Commands for lending cores, one file each."""
