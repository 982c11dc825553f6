"""An mpirun that fails before it starts a rank, as Open MPI 5.0.11 did once."""

from __future__ import annotations

import os
from pathlib import Path

from conftest import Site

from vrm.live.launch.openmpi import find_mpirun

SAID = """--------------------------------------------------------------------------
The PMIx server's listener thread failed to start. We cannot
continue.
--------------------------------------------------------------------------
"""
"""Its error message; the exit status was 213."""

WRAPPED = """
case "$*" in *--version*) exec "$REAL" "$@" ;; esac
tries=$(cat "$HERE/tries.$VRM_JOB_ID" 2>/dev/null || echo 0)
echo $((tries + 1)) > "$HERE/tries.$VRM_JOB_ID"
[ $tries -lt $FAILS ] || exec "$REAL" "$@"
cat "$HERE/said" >&2
exit 213
"""


def failing(site: Site, mpirun: str) -> Path:
    """Write an mpirun that fails $FAILS times for each job and then runs the real `mpirun`; return its path."""
    site.env.update(HERE=str(site.root), REAL=find_mpirun(mpirun, dict(os.environ))[0])
    (site.root / "said").write_text(SAID)
    return site.program("mpirun", WRAPPED)


def tries(site: Site) -> dict[int, int]:
    """Return the number of launches of each job."""
    return {int(path.suffix[1:]): int(path.read_text()) for path in site.root.glob("tries.*")}
