"""Keeps vrm's commands first on the PATH of bash, whatever login shells (`bash -l`) and modules do to PATH.

Bash reads the file that BASH_ENV names before a script or a command of `-c`, after the profiles of a login shell. The
file of vrm first reads the user's own such file. It also corrects PATH after `module` and `ml`. Interactive shells,
and other shells than bash, do not read it.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from collections.abc import Mapping, Sequence

FILE = "bash_env"
"""The name of the file, in the folder of the commands."""

VARIABLE, BEFORE = "BASH_ENV", "BASH_ENV_BEFORE_VRM"
"""The variable that bash reads, and the one that keeps its earlier value."""

_TEXT = """\
# Bash reads this file (BASH_ENV), so that vrm's commands stay first on PATH behind profiles and modules.
[ ! -r "${BEFORE-}" ] || . "$BEFORE"
vrm_path() {
    case $PATH: in FOLDERS:*) ;; *) PATH=FOLDERS:$PATH;; esac
    MPI
}
vrm_path
for vrm_each in module ml; do
    if declare -F "$vrm_each" >/dev/null && [[ $(declare -f "$vrm_each") != *vrm_path* ]]; then
        eval "vrm_$(declare -f "$vrm_each")"
        eval "$vrm_each() { vrm_$vrm_each \\"\\$@\\"; set -- \\$?; vrm_path; return \\$1; }"
        export -f "vrm_$vrm_each" "$vrm_each" vrm_path
    fi
done
unset vrm_each
"""


def text(folders: Sequence[Path]) -> str:
    """Return the text of the file for commands in these folders. An mpirun that was installed with vrm is found if
    there is no other."""
    own = Path(sys.executable).absolute().parent
    mpi = (f"command -v mpirun >/dev/null || PATH=$PATH:{shlex.quote(str(own))}"
           if os.access(own / "mpirun", os.X_OK) else ":")
    return _TEXT.replace("BEFORE", BEFORE).replace("MPI\n", f"{mpi}\n").replace(
        "FOLDERS", shlex.quote(os.pathsep.join(map(str, folders))))


def variables(folder: Path, env: Mapping[str, str], others: Sequence[Path] = ()) -> dict[str, str]:
    """Return the variables that make bash read the file in this folder; `env` is the environment before. `others` are
    further folders whose files are vrm's."""
    given = env.get(VARIABLE, "")
    ours = {str(each / FILE) for each in (folder, *others)}
    return {VARIABLE: str(folder / FILE), BEFORE: env.get(BEFORE, "") if given in ours else given}
