"""Shared test code: sites, machines, substitutes for programs, and simple reference implementations that define behaviour."""
