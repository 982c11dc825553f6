"""Its command."""
