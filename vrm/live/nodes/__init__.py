"""The nodes of a run: what they offer, the agent on each, and which of them are lost."""
