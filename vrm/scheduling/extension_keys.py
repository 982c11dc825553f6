"""Keys of the configuration that installed packages add: entry points of the group `vrm.keys`, each a function that
gets the value in the configuration (a text, a list, a mapping) and returns the value to use, or raises ValueError. Its
docstring describes the key.

In a configuration, these keys are under `Extensions`, by package and key.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Any
from collections.abc import Iterator, Mapping

from vrm.scheduling.registry import PolicyError
from vrm.system import plugins

SECTION = "Extensions"


def text_of(extensions: Mapping[str, Any]) -> str:
    """Return the text form in which rules keep the keys of packages; "" if there are none."""
    return json.dumps(extensions, sort_keys=True) if extensions else ""


def values(extensions: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return the value of each key of packages, by its name. Raises PolicyError for a wrong one."""
    found: dict[str, Any] = {}
    for package, name, raw in _keys(json.loads(extensions or "{}") if isinstance(extensions, str) else extensions):
        try:
            found[name] = value_of(package, name, raw)
        except ValueError as error:
            raise PolicyError(f"{SECTION}.{package}.{name}: {error}") from error
    return found


def faults(extensions: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield, for each wrong key, its place in the configuration and what is wrong."""
    for package, name, raw in _keys(extensions):
        try:
            value_of(package, name, raw)
        except ValueError as error:
            yield (SECTION, package, name), str(error)


def _keys(extensions: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for package, keys in extensions.items():
        for name, raw in keys.items():
            yield package, name, raw


def value_of(package: str, name: str, raw: Any) -> Any:
    """Return the value of a key. Raises ValueError with what is wrong and how to fix it."""
    plugin = plugins.find("vrm.keys", name)
    if plugin is None or plugin.package != package or plugin.name != name:
        known = [each.name for each in plugins.installed("vrm.keys") if each.package == package]
        if not known:
            raise ValueError(f"the package {package}, which adds it, is not installed here; install it, or remove the "
                             "key")
        close = get_close_matches(name, known, 1)
        raise ValueError(f"{package} has no such key; "
                         + (f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"))
    read = plugins.load(plugin)
    try:
        return read(raw)
    except ValueError:
        raise
    except Exception as error:  # third-party code may raise anything
        raise plugins.failed(plugin, error) from error


def described() -> str:
    """Return the keys of all installed packages, with their descriptions, as part of a configuration file; "" if there
    are none."""
    found: dict[str, list[str]] = {}
    for plugin in plugins.installed("vrm.keys"):
        try:
            about = (plugins.load(plugin).__doc__ or "").strip().splitlines()
        except plugins.PluginError as error:
            about = [str(error)]
        found.setdefault(plugin.package, []).extend(
            [*(f"    # {line.strip()}".rstrip() for line in about), f"    {plugin.name}:"])
    lines = [line for package, keys in found.items() for line in (f"  {package}:", *keys)]
    return "\n".join(["", "# Keys of installed packages.", f"{SECTION}:", *lines, ""]) if lines else ""
