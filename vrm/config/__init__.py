"""The configuration: its schema, the reader of its file, and the reports of mistakes in it."""
