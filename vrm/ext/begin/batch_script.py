"""The text of the scripts that submit vrm to a batch system. Comments in a script explain its lines;
tests/ext/begin/test_vrm_script.py tests the facts behind them."""

from __future__ import annotations

import shlex

from vrm.live.batch.base import BatchScript, BatchScriptError, systems
from vrm.model.quantities import clock


def submit_commands(system: str, wrapper: BatchScript) -> list[str]:
    """Return the commands that submit the script, or a chain of it.

    The user submits all allocations of a chain at once: a script that submits itself again fails where nodes may not
    submit, and a script that goes wrong would do so endlessly.
    """
    file = shlex.quote(wrapper.file)
    if wrapper.chain == 1:
        return [f"{systems()[system].submit} {file}"]
    return systems()[system].chain(file, " ".join(map(str, range(2, wrapper.chain + 1))))


def script(system: str, wrapper: BatchScript) -> str:
    """Return the script for a batch system, by its name. Raises BatchScriptError."""
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


def check(system: str, wrapper: BatchScript) -> None:
    """Raise BatchScriptError if the batch system cannot do what is requested."""
    if not wrapper.file.isprintable():
        raise BatchScriptError("the script's name has a character that cannot be shown; choose another")
    about = systems()[system]
    if wrapper.cores is None and not (about.whole_nodes and wrapper.exclusive):
        whole = ", or --exclusive for all that the nodes have" if about.whole_nodes else ""
        raise BatchScriptError("how many cores of each node? Give --cores N"
                               f"{whole} (or Sockets and Cores in the configuration)")
    about.check_script(wrapper)
