"""Output for people: state tables, metrics, records of jobs."""
