"""The batch system around the run: nodes, end of the allocation, scripts to submit."""
