"""Forecasts: when waiting jobs will start, why they do not start now, and what would let them start earlier.
The method: a copy of the run continues in virtual time."""
