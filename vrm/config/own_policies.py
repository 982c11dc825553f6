"""Load users' own policies: `my_policies:widest_first` is the function `widest_first` of the file `my_policies.py` in
the configuration's directory, or else of a module that Python finds.

Such a file is a program that runs with the user's rights, so it must meet the same trust rules as the configuration:
no other user may be able to write it, or a directory on its path.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from collections.abc import Iterable, Iterator

from vrm.scheduling.placement.user_placement import parts_of
from vrm.scheduling.registry import PolicyError, failure, is_dotted
from vrm.system.trust import distrust

_loaded: dict[str, Path] = {}
"""Modules that this module has loaded, by name."""


def load_own(text: str, directory: Path, trust: str = "own") -> None:
    """Load the file of a policy such as `my_policies:widest_first`, if it is in the directory, so that it is found by
    its name; does nothing for other policies.

    Raises PolicyError for a file that other users may write, that has the name of another module, or that fails.
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
        except Exception as error:  # user code: report whatever it raises
            del sys.modules[name]
            raise failure(text, error) from error
        _loaded[name] = path


def _fault(path: Path, trust: str) -> str:
    """Return why a file of policies must not be loaded; "" if it may. Python may load a compiled file from
    `__pycache__` instead, so other users must not be able to write there."""
    return (distrust(path, trust, there=True) or distrust(path.parent, trust, home=True)
            or distrust(path.parent / "__pycache__", trust, home=True))


def files(texts: Iterable[str], directory: Path) -> Iterator[Path]:
    """Yield the files in the directory that contain the policies, each once."""
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

    Raises PolicyError for a file that other users may write.
    """
    for path in files(texts, directory):
        reason = _fault(path, trust)
        if reason:
            raise PolicyError(reason)
        shutil.copyfile(path, to / path.name)
