"""The names of `vrm.ext.session` where they were before 1.0, for programs that import them from here."""

from vrm.ext.session import JobFailed, Result, Session, SessionError

__all__ = ["JobFailed", "Result", "Session", "SessionError"]
