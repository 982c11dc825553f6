"""Virtual time: the policies of the live manager on recorded and invented workloads.

    from vrm.simulation import simulate
    outcome = simulate("trace.swf.gz", algorithm="WFP3", backfill="easy")
    print(outcome.summary["average_wait"])
"""

from typing import Any

__all__ = ["Outage", "Outcome", "Submission", "Watcher", "simulate"]


def __getattr__(name: str) -> Any:
    """The library's names, loaded at their first use: the live commands need none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vrm.simulation import library
    return getattr(library, name)
