"""What a manager writes for people: lines of ended jobs, and the state file."""
