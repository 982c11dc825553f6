"""The command that generates queues and workloads."""
