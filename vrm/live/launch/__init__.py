"""How a job becomes processes: the launchers, and the environment of jobs."""
