"""The kind of file system of a path: locks of databases are not safe on a file system that several machines
share."""

from __future__ import annotations

import os
import re
from pathlib import Path

NETWORK = frozenset(("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p",
                     "glusterfs", "pvfs2", "orangefs", "panfs", "wekafs", "gfs2", "ocfs2", "davfs", "ncpfs", "coda"))
"""Kinds of file systems, as the kernel names them, that several machines may write."""

LOCAL_FUSE = ("fuseblk", "fuse.fuse-overlayfs", "fuse.overlayfs", "fuse.squashfuse")
"""Kinds of local file systems in user space; other FUSE file systems may be remote."""


def mounted(path: str | os.PathLike[str], table: str | None = None) -> tuple[str, str]:
    """Return the directory where the file system of a path is mounted, and its kind; ("", "") if they are
    unknown. `table` is the text of /proc/self/mountinfo (default: read now). The path need not exist."""
    if table is None:
        try:
            table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return "", ""
    real, found = os.path.realpath(path), ("", "")
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        words = before.split(" ")
        if not dash or len(words) < 5:
            continue
        at = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[4])
        if (real == at or real.startswith(f"{at.rstrip('/')}/")) and len(at) >= len(found[0]):
            found = at, after.split(" ")[0]
    return found


def shared(kind: str) -> bool:
    """Return whether several machines may write a file system of this kind."""
    return kind in NETWORK or (kind.startswith("fuse") and kind not in LOCAL_FUSE)
