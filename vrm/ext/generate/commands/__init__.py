"""The command that writes queues."""
