"""The command for reservations."""
