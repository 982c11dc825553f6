"""Forecasts as people read them."""
