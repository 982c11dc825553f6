"""The commands of PBS that vrm answers, by name."""

from __future__ import annotations

from vrm.ext.slurm.calls.names import Dialect


def pbs() -> Dialect:
    """Return the commands of PBS."""
    return Dialect(
        {"qsub": "vrm.ext.pbs.qsub:qsub",
         "qstat": "vrm.ext.pbs.qstat:qstat",
         "qdel": "vrm.ext.pbs.jobs:qdel",
         "qhold": "vrm.ext.pbs.jobs:qhold",
         "qrls": "vrm.ext.pbs.jobs:qrls",
         "qalter": "vrm.ext.pbs.jobs:qalter",
         "pbsnodes": "vrm.ext.pbs.nodes:pbsnodes",
         "qselect": "vrm.ext.pbs.jobs:qselect",
         "qrerun": "vrm.ext.pbs.jobs:qrerun",
         "qsig": "vrm.ext.pbs.jobs:qsig",
         **dict.fromkeys((
             "pbsdsh", "qmove", "qmsg", "qmgr", "tracejob", "qorder", "qenable", "qdisable", "qstart", "qstop", "qterm",
             "qrun", "pbs_rsub", "pbs_rstat", "pbs_rdel", "pbs_ralter", "pbs_release_nodes", "pbs_tmrsh", "pbs_attach"),
             "vrm.ext.pbs.pbsdsh:refused")},
        submitting=frozenset(("qsub",)),
        reading=frozenset(("qstat", "pbsnodes", "qselect")),
        about_jobs=frozenset(("qstat", "qselect", "pbsnodes")),
        local={"pbsdsh": "vrm.ext.pbs.pbsdsh:pbsdsh"})
