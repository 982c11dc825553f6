"""Studies: experiments of many runs, reports that compare runs, and validation of the simulator against live runs."""
