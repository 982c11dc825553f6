"""Where the client was before 1.0: commands that an older version has put into directories of users import it."""

from vrm.ext.slurm.calls import __path__  # noqa: F401
