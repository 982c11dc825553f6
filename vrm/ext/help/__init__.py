"""Help besides that of the commands: the documentation, manual pages, the list of plugins, shell completion."""
