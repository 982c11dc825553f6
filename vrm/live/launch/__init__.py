"""Launchers, which start the processes of jobs: a file for each launcher, and the environment of jobs.

Each file of this folder that contains a launcher registers it when it is imported. `Launcher.Kind: auto` tries those
of FIRST before the others, and those of extensions last.
"""

from importlib import import_module
from pkgutil import iter_modules

FIRST = ("openmpi", "direct")

for name in dict.fromkeys((*FIRST, *sorted(module.name for module in iter_modules(__path__)))):
    import_module(f"{__name__}.{name}")
