"""A simulated machine: its kernel, and the modules of Python through which programs reach it."""
