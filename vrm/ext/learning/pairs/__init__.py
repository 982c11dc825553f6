"""How well programs share nodes, learned from ordinary runs: no benchmark is needed."""
