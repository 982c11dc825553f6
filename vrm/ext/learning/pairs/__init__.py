"""How well programs share nodes, learned from the jobs of ordinary runs: no benchmark is needed."""
