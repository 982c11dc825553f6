"""The error class that all parts of a live run share."""


class RunError(Exception):
    """The manager cannot run; the text says why and what to do."""
