"""Code that agents run on nodes for the extension. Its files use only the standard library of Python 3.6."""
