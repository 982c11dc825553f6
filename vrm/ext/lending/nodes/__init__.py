"""What agents of nodes do for lending: files for the standard library of Python 3.6 alone."""
