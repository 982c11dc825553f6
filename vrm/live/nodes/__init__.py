"""The nodes of a run: what they have, the agent on each, and which of them are lost."""
