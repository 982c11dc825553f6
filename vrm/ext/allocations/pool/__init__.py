"""One queue over several allocations: managers that take jobs from one journal on the shared file system."""
