"""vrm: your own cluster inside somebody else's.

A batch job that runs your queue on its nodes with your scheduling and your placement.

    from vrm import Session      # jobs as futures
    from vrm import simulate     # a workload in virtual time

`vrm.api` has all public names.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # steps of scripts import this module and must start within milliseconds
    from typing import Any

__version__ = "1.0.0rc1"


def __getattr__(name: str) -> Any:
    """Return `Session` or `simulate`, loaded at first use: commands do not need them."""
    if name not in ("Session", "simulate"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vrm import api
    return getattr(api, name)
