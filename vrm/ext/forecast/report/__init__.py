"""Forecasts as pages, tables and pictures."""
