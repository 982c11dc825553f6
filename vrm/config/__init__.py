"""The configuration: its schema, the reader of its file, and what can be wrong with it."""
