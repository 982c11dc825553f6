"""What agents of nodes do for energy: a file that needs only the standard library of Python 3.6."""
