"""The batch system around the run: nodes, end of the allocation, scripts to submit.

A file of this folder with a batch system in it registers that. Where the environment is that of several,
the first of FIRST counts, then the others by name, then those of extensions.
"""

from importlib import import_module
from pkgutil import iter_modules

FIRST = ("slurm", "pbs")

for name in dict.fromkeys((*FIRST, *sorted(module.name for module in iter_modules(__path__)))):
    import_module(f"{__name__}.{name}")
