"""A user's own policies: `my_policies:widest_first` is the function `widest_first` of the file
`my_policies.py` in the configuration's directory, else of a module that Python finds.

Such a file is a program that runs in the user's name, so it is trusted as the configuration itself
is: nobody else may write it, nor a directory on the way to it.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from collections.abc import Iterable, Iterator

from vrm.scheduling.placement.custom import parts_of
from vrm.scheduling.registry import PolicyError, failure, is_dotted
from vrm.system.trust import distrust

_loaded: dict[str, Path] = {}
"""The modules that were loaded here, by name."""


def load_own(text: str, directory: Path, trust: str = "own") -> None:
    """Load the file of a policy such as `my_policies:widest_first` if it is in the directory, so
    that it is found by its name; nothing for other policies.

    Raises PolicyError for a file that others may write, that has the name of another module, or
    that fails.
    """
    for path in files([text], directory):
        name = path.stem
        if _loaded.get(name) == path and name in sys.modules:
            return
        reason = _fault(path, trust)
        if reason:
            raise PolicyError(f"`{text.strip()}`: {reason}")
        if name in sys.stdlib_module_names or (name in sys.modules and name not in _loaded):
            raise PolicyError(f"`{text.strip()}`: Python has a module {name} of its own; give "
                              f"{path} another name")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # the name ends in .py
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # it is the user's program: whatever it raises is reported
            del sys.modules[name]
            raise failure(text, error) from error
        _loaded[name] = path


def _fault(path: Path, trust: str) -> str:
    """Why a file of policies is not to be loaded. Python may take a compiled file from beside it
    instead, so nobody else may put one there."""
    return (distrust(path, trust, there=True) or distrust(path.parent, trust, home=True)
            or distrust(path.parent / "__pycache__", trust, home=True))


def files(texts: Iterable[str], directory: Path) -> Iterator[Path]:
    """The files in the directory that policies are in, each once."""
    seen = set()
    for text in (part for named in texts for part in parts_of(named)):
        module = text.strip().partition(":")[0]
        if not is_dotted(text) or "." in module or module in seen:
            continue
        seen.add(module)
        path = Path(directory).absolute() / f"{module}.py"
        if path.is_file():
            yield path


def copy_own(texts: Iterable[str], directory: Path, to: Path, trust: str = "own") -> None:
    """Copy the files of own policies, for a run whose configuration is in another directory.

    Raises PolicyError for a file that others may write.
    """
    for path in files(texts, directory):
        reason = _fault(path, trust)
        if reason:
            raise PolicyError(reason)
        shutil.copyfile(path, to / path.name)
