"""What a person sees: rows, colours, moments, and text that comes from files."""
