"""Urgent jobs, which start now or by a given time: for them other jobs lend cores, are paused, or are requeued."""
