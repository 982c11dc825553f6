"""How a job becomes processes: a file for each launcher, and the environment of jobs.

A file of this folder with a launcher in it registers that. `Launcher.Kind: auto` looks for those of
FIRST before the others, and for those of extensions last.
"""

from importlib import import_module
from pkgutil import iter_modules

FIRST = ("openmpi", "direct")

for name in dict.fromkeys((*FIRST, *sorted(module.name for module in iter_modules(__path__)))):
    import_module(f"{__name__}.{name}")
