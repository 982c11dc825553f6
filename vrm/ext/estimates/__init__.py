"""Run time estimates learnt from ended jobs, and the guard against starvation for estimates that are too short."""
