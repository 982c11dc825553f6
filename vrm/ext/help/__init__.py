"""Help beyond that of the commands: the documentation, manual pages, what packages add, completion in a shell."""
