"""Builds vrm's C code with the compiler of the user."""
