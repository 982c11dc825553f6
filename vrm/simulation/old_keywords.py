"""The old keywords of `simulate`, from before it took objects: each is now a field of one of these. They work for one
more version, with a warning."""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any, TypeVar, cast
from collections.abc import Callable, Mapping

from vrm.simulation.arguments import FIELDS, PARTS, by_name
from vrm.workload.swf import Selection

Function = TypeVar("Function", bound=Callable[..., Any])


def with_old_keywords(simulate: Function) -> Function:
    """Return the function with support for old keywords; a DeprecationWarning shows their new form."""
    @wraps(simulate)
    def call(*given: Any, **keywords: Any) -> Any:
        named = {"selection" if isinstance(value, Selection) else name: value for name, value in keywords.items()}
        if named.keys() != keywords.keys() or FIELDS.keys() & named.keys():
            old = [f"{name}=" for name in keywords if name != "workload"]
            warnings.warn(f"simulate({', '.join(old)}): write {_new_form(named)}", DeprecationWarning, stacklevel=2)
            named = by_name(named)
        return simulate(*given, **named)
    return cast(Function, call)


def _new_form(named: Mapping[str, Any]) -> str:
    """Return the new form, as `simulate(workload, machine=Machine.of(nodes=...), rules=Rules(backfill=...))`."""
    parts: dict[str, list[str]] = {"workload": []}
    for name in named:
        parts.setdefault(FIELDS.get(name, name), []).extend([f"{name}=..."] * (name in FIELDS))
    makers = {parameter: kind.__name__ for parameter, kind in PARTS.items()}
    makers["machine"] += ".of" * isinstance(named.get("nodes"), int)
    said = [f"{name}={makers[name]}({', '.join(each)})" if each else name if name == "workload" else f"{name}=..."
            for name, each in parts.items()]
    return f"simulate({', '.join(said)})"
