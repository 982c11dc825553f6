"""What agents of nodes do for energy: a file for the standard library of Python 3.6 alone."""
