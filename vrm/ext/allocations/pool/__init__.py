"""One queue for several allocations: their managers take jobs from one journal on the shared file system."""
