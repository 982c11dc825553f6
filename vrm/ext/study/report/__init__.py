"""Reports on runs that have ended: HTML pages, tables and pictures, of one run or many."""
