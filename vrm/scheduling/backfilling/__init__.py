"""Dispatchers: which jobs start now, and which of them overtake others."""
