"""The batch system around the run: its nodes, the end of the allocation, and scripts to submit.

A file of this folder that defines a batch system registers it. If an environment matches several,
those of this folder come first, by name, then those of extensions.
"""

from importlib import import_module
from pkgutil import iter_modules

for name in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{name}")
