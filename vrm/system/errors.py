"""The failure that all of a live run shares."""


class RunError(Exception):
    """The manager cannot run; the text says why and what to do."""
