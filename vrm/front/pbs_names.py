"""The commands of PBS that vrm answers, by their names."""

from __future__ import annotations

from vrm.front.names import Dialect


def pbs() -> Dialect:
    """The commands of PBS."""
    return Dialect(
        {"qsub": "vrm.front.pbs_qsub:qsub",
         "qstat": "vrm.front.pbs_qstat:qstat",
         "qdel": "vrm.front.pbs_jobs:qdel",
         "qhold": "vrm.front.pbs_jobs:qhold",
         "qrls": "vrm.front.pbs_jobs:qrls",
         "qalter": "vrm.front.pbs_jobs:qalter",
         "pbsnodes": "vrm.front.pbs_nodes:pbsnodes",
         "qselect": "vrm.front.pbs_jobs:qselect",
         "qrerun": "vrm.front.pbs_jobs:qrerun",
         "qsig": "vrm.front.pbs_jobs:qsig",
         **dict.fromkeys((
             "pbsdsh", "qmove", "qmsg", "qmgr", "tracejob", "qorder", "qenable", "qdisable", "qstart", "qstop", "qterm",
             "qrun", "pbs_rsub", "pbs_rstat", "pbs_rdel", "pbs_ralter", "pbs_release_nodes", "pbs_tmrsh", "pbs_attach"),
             "vrm.front.pbs_others:refused")},
        submitting=frozenset(("qsub",)),
        reading=frozenset(("qstat", "pbsnodes", "qselect")),
        about_jobs=frozenset(("qstat", "qselect", "pbsnodes")),
        local={"pbsdsh": "vrm.front.pbs_others:pbsdsh"})
