"""The batch system around the run: nodes, end of the allocation, scripts to submit.

A file of this folder with a batch system in it registers that. Where the environment is that of several,
these come first, by name, then those of extensions.
"""

from importlib import import_module
from pkgutil import iter_modules

for name in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{name}")
