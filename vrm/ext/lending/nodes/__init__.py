"""Code that agents run on the nodes for lending. It uses only the standard library of Python 3.6."""
