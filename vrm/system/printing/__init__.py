"""Output for people: tables, colours, times, and text that comes from files."""
