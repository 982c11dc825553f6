"""Parts of the manager that extensions add, both vrm's own and installed packages (`vrm.system.plugins`, group
`vrm.parts`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from collections.abc import Callable, Sequence

from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part, event_fault, overrides
from vrm.run.journal.history import RunHistory
from vrm.system import plugins
from vrm.system.errors import RunError

HOOKS = tuple(name for name, hook in vars(Part).items() if callable(hook) and not name.startswith("_"))
"""Names of the hooks that the manager calls in a part."""


def extension_parts(live: LiveRun) -> list[Part]:
    """Create the parts that extensions add, for a run."""
    found: list[Part] = []

    def enter(plugin: plugins.Plugin, make: Callable[[LiveRun], Part]) -> None:
        part = make(live)
        if not isinstance(part, Part):
            raise TypeError("it does not return a vrm.live.manager.part.Part")
        part.name, part.package = plugin.name, plugin.package
        found.append(guarded(part, live))

    plugins.use("vrm.parts", (), enter)
    return found


def restore_events(parts: Sequence[Part], past: RunHistory, path: Path) -> None:
    """Pass to the parts of extensions their events that earlier managers of the run have recorded. Raises RunError if
    that is not possible."""
    by_name = {part.name: part for part in parts if part.name}
    for name, happened in past.parts.items():
        part = by_name.get(name)
        if part is None:
            raise RunError(f"{path}: there are events of the part `{name}` of an extension, which cannot be used now; "
                           "`vrm plugins` says why")
        for event, values in happened:
            wrong = event_fault(part, event, values)
            if wrong:
                raise RunError(f"{path}: {wrong}; install the version of {part.package} that wrote it, or a newer one")
            part.happened(event, values)


def guarded(part: Part, live: LiveRun) -> Part:
    """Return the part, which is disabled as soon as one of its hooks raises an exception: the run continues without it.
    An exception in the middle of a change (the journal has grown) ends the manager, and the next one continues from the
    journal."""
    out: list[Exception] = []

    def guard(name: str) -> Callable[..., Any]:
        own, otherwise = getattr(part, name), getattr(Part, name)

        def call(*arguments: Any) -> Any:
            if out:
                return otherwise(part, *arguments)
            before = live.journal.appended
            try:
                return own(*arguments)
            except Exception as error:  # a part is foreign code
                if live.journal.appended != before:
                    raise
                live.tell("warning", f"{type(part).__module__}:{type(part).__name__} is left out from here on: its "
                                     f"`{name}` raised {type(error).__name__}: {error}")
                out.append(error)
                return otherwise(part, *arguments)
        return call

    for name in HOOKS:
        if overrides(part, name):
            setattr(part, name, guard(name))
    return part
