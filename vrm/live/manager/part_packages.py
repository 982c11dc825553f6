"""Parts of the manager that extensions add, vrm's own and installed packages (`vrm.system.plugins`, group `vrm.parts`)."""

from __future__ import annotations

from typing import Any
from collections.abc import Callable

from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.part import Part
from vrm.system import plugins

HOOKS = tuple(name for name in vars(Part) if not name.startswith("_"))
"""What the manager calls of a part."""


def of_packages(live: LiveRun) -> list[Part]:
    """The parts that extensions add, made for a run."""
    found: list[Part] = []

    def enter(plugin: plugins.Plugin, make: Callable[[LiveRun], Part]) -> None:
        part = make(live)
        if not isinstance(part, Part):
            raise TypeError("it gives no vrm.live.manager.part.Part")
        found.append(guarded(part, live))

    plugins.use("vrm.parts", (), enter)
    return found


def guarded(part: Part, live: LiveRun) -> Part:
    """The part, which does nothing more once one of its hooks has raised something: the run goes on without it. In half
    of a change, which the journal shows, it ends the manager, and the next one goes on by the journal."""
    def guard(name: str) -> Callable[..., Any]:
        own, otherwise = getattr(part, name), getattr(Part, name)

        def call(*arguments: Any) -> Any:
            before = live.journal.appended
            try:
                return own(*arguments)
            except Exception as error:  # it is somebody else's program
                if live.journal.appended != before:
                    raise
                live.tell("warning", f"{type(part).__module__}:{type(part).__name__} is left out from here on: its "
                                     f"`{name}` raised {type(error).__name__}: {error}")
                for hook in HOOKS:
                    setattr(part, hook, getattr(Part, hook).__get__(part))
                return otherwise(part, *arguments)
        return call

    for name in HOOKS:
        setattr(part, name, guard(name))
    return part
