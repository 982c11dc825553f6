"""What agents of nodes do for the extension: a file for the standard library of Python 3.6 alone."""
