"""Where steps were before 1.0: jobs that an older version has started, and its commands, import them from here."""

from vrm.ext.steps import __path__  # noqa: F401
