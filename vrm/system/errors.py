"""The base class of the errors whose text is for the user, and the one that all parts of a live run share."""


class UserError(Exception):
    """What the user wants is impossible; the text says why and what to do. A command that raises it prints the text
    and ends with exit status 2."""


class RunError(UserError):
    """The manager cannot run; the text says why and what to do."""
