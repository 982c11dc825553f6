"""The public interface is the one that is recorded in tests/api.txt: names, parameters with their defaults, methods
and attributes. Change that file only together with the changelog."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from collections.abc import Iterator

import pytest

from vrm import api

RECORD = Path(__file__).with_name("api.txt")
DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = "".join((DOCS / folder / "policies.md").read_text() for folder in ("how-to", "reference"))

OF_THE_PAGE = ("Cluster", "Job", "Placement", "Scheduler")
"""Of these classes what these pages name is public, and no more: vrm itself works with them."""


class Shown(str):
    """A default as it is recorded."""

    __repr__ = str.__str__


def signature(made: Any) -> str:
    """The parameters with their defaults, without types; of objects as defaults only what they are."""
    found = inspect.signature(made)
    plain = [each.replace(annotation=each.empty, default=each.default if len(repr(each.default)) < 20 or each.default is each.empty
                          else Shown(f"{type(each.default).__name__}(...)")) for each in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=found.empty))


def described(name: str) -> Iterator[str]:
    """The lines of a public name."""
    made = getattr(api, name)
    if not inspect.isclass(made):
        yield f"{name}{signature(made)}"
        return
    yield name if issubclass(made, Exception) else f"class {name}{signature(made)}"
    for base in made.__mro__:
        if not base.__module__.startswith("vrm."):
            continue
        for member, found in vars(base).items():
            if member.startswith("_") or (base is not made and member in vars(made)):
                continue
            if name in OF_THE_PAGE and not re.search(rf"\b{member}\b", PAGE):
                continue
            plain = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
            yield f"  {name}.{member}{signature(plain)}" if inspect.isfunction(plain) else f"  {name}.{member}"


def interface() -> str:
    """All public names, as they are recorded."""
    assert len(api.__all__) <= 25 and api.__all__ == sorted(api.__all__)
    lines = []
    for name in api.__all__:
        first, *rest = described(name)
        lines += [first, *sorted(set(rest))]
    return "\n".join(lines) + "\n"


def test_the_interface_is_the_recorded_one() -> None:
    assert interface() == RECORD.read_text()


@pytest.mark.parametrize("name", api.__all__)
def test_each_name_is_explained(name: str) -> None:
    made = getattr(api, name)
    text = inspect.getdoc(made) or ""
    assert text[:1].isupper() and text.split("\n\n")[0].rstrip().endswith("."), text
    assert f"`{name}`" in (api.__doc__ or "")
    for line in described(name):
        member = line.strip().partition("(")[0].partition(".")[2]
        found = inspect.getattr_static(made, member, None) if member else None
        if inspect.isfunction(found) or isinstance(found, (property, classmethod, staticmethod)):
            assert inspect.getdoc(getattr(found, "__func__", found)), f"{name}.{member}"


def test_nothing_is_loaded_before_it_is_used() -> None:
    code = "import sys, vrm.api; print(sorted(name for name in sys.modules if name.startswith('vrm')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['vrm', 'vrm.api']\n"


def test_another_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Simulate'; its names are Cluster, Infeasible, "):
        api.Simulate  # noqa: B018


@pytest.mark.slow
def test_a_type_checker_knows_the_names(tmp_path: Path) -> None:
    program = tmp_path / "mine.py"
    program.write_text("from vrm.api import Rules, simulate\n\nwait: str = simulate('x', rules=Rules()).summary\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)],
                          cwd=tmp_path, env={**os.environ, "MYPYPATH": str(RECORD.parents[1])}, capture_output=True, text=True, check=False)
    assert 'expression has type "dict[str, Any]", variable has type "str"' in done.stdout, done.stdout
