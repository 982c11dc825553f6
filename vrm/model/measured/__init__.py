"""Measurements of programs."""
