"""The scripts in which vrm is submitted to a batch system, as text. What each line is for stands
beside it; the facts behind them are tested in tests/ext/begin/test_wrapper.py.
"""

from __future__ import annotations

import shlex

from vrm.live.batch.base import Wrapper, WrapperError, systems
from vrm.model.quantities import clock


def submit_commands(system: str, wrapper: Wrapper) -> list[str]:
    """What to type to submit the script, a chain of them too.

    The allocations of a chain are submitted at once, by the user: a script that submits itself
    again fails where nodes may not submit, and one that goes wrong does so for ever.
    """
    file = shlex.quote(wrapper.file)
    if wrapper.chain == 1:
        return [f"{systems()[system].submit} {file}"]
    return systems()[system].chain(file, " ".join(map(str, range(2, wrapper.chain + 1))))


def script(system: str, wrapper: Wrapper) -> str:
    """The script for a batch system, by its name. Raises WrapperError."""
    check(system, wrapper)
    about = systems()[system]
    length = clock(wrapper.walltime)
    nodes = f"{wrapper.nodes} node{'s' * (wrapper.nodes > 1)}"
    # A login shell, where `module` is defined.
    lines = ["#!/bin/bash -l" if wrapper.modules else "#!/bin/bash", f"# vrm on {nodes} for {length}. Submit it with:",
             *(f"#   {line}" for line in submit_commands(system, wrapper))]
    if wrapper.chain > 1:
        lines += ["# They run one after the other. Each runs what was interrupted and new lines of the queue;",
                  "# when no job is left, the next ones end at once."]
    else:
        lines.append("# Submitted again, it runs what was interrupted and new lines of the queue, and repeats nothing.")
        lines.append("# After `vrm requeue failed` it also runs what failed.")
    lines += [text if text.startswith("# ") else f"#{about.directive} {text}"
              for text in (*about.script_lines(wrapper), *wrapper.directives)]
    lines += ["", *about.script_start(wrapper)]
    if wrapper.modules:
        lines.append(f"module load {' '.join(map(shlex.quote, wrapper.modules))} || exit 2")
    lines += ["# exec: vrm takes the place of this shell, so that signals reach it; without srun",
              "# or mpirun before it, since it starts those itself.",
              f"exec {' '.join(map(shlex.quote, wrapper.command))} \"$@\""]
    return "\n".join(lines) + "\n"


def check(system: str, wrapper: Wrapper) -> None:
    """Raise WrapperError where the batch system could not do as wished."""
    if not wrapper.file.isprintable():
        raise WrapperError("the script's name has a character that cannot be shown; choose another")
    about = systems()[system]
    if wrapper.cores is None and not (about.whole_nodes and wrapper.exclusive):
        whole = ", or --exclusive for all that the nodes have" if about.whole_nodes else ""
        raise WrapperError("how many cores of each node? Give --cores N"
                           f"{whole} (or Sockets and Cores in the configuration)")
    about.check_script(wrapper)
