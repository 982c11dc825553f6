"""Pages, tables and pictures of runs that have ended, and of many of them."""
