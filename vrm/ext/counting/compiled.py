"""The compression of reservations in C (`compress.c`), built with the user's compiler when a plan first becomes
long; without a compiler the slower Python version is used. Both give bit-identical plans."""

from __future__ import annotations

import ctypes
from array import array
from pathlib import Path
from typing import Any
from collections.abc import Callable

from vrm.model.job import Job
from vrm.scheduling.backfilling.compression import Compress, ReservationTable
from vrm.scheduling.backfilling.profile import CountProfile
from vrm.scheduling.orderings.queue import Key
from vrm.ext.building.compiling import CompileError, Recipe

# Without contraction, a product and a sum are rounded separately, as in Python.
COMPRESS = Recipe("compress", "the compression of plans", Path(__file__).with_name("compress.c"),
                  options=("-ffp-contract=off", "-lm"))
MORE = 4
"""Maximum number of steps that one move adds to a plan."""


def compiled() -> Compress | None:
    """Return `vrm.scheduling.backfilling.compression.compress` in C; None if it cannot be built."""
    try:
        run = ctypes.CDLL(str(COMPRESS.made())).vrm_compress
    except (CompileError, OSError):
        return None
    run.restype, at, number = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
    run.argtypes = [at, at, number, at, number, at, at, at, at]

    def compress(table: ReservationTable[Any], profile: CountProfile, freed: float,
                 key_of: Callable[[Job], Key] | None) -> float:
        keys = table.keys if key_of is None else list(map(key_of, table.jobs))
        order = array("q", sorted(range(len(keys)), key=keys.__getitem__))
        steps, room = len(profile.times), bytes(8 * MORE * len(keys))
        times, free, until = profile.times[:], profile.free[:], array("d", [freed])
        times.frombytes(room)
        free.frombytes(room)
        left = run(*(column.buffer_info()[0] for column in (times, free)), steps, order.buffer_info()[0],
                   len(keys), *(column.buffer_info()[0] for column in (table.size, table.duration, table.time,
                                                                      until)))
        del times[left:], free[left:]
        profile.times, profile.free = times, free
        return until[0]

    return compress
