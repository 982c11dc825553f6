"""Makes the commands of other batch systems: one small C program under several names, or, without a compiler,
scripts that start Python."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from secrets import token_hex

from vrm.ext.slurm.calls import wire
from vrm.ext.slurm.calls.names import LAUNCHERS, everything
from vrm.ext.steps import START
from vrm.system import job_variables, bash_env
from vrm.ext.steps.resource_use import PROGRAM
from vrm.ext.building import compiling
from vrm.ext.building.compiling import CompileError, CacheError, Recipe
from vrm.system.files import write_atomically

SOURCE = Path(__file__).with_name("client.c")
ROOT = Path(__file__).resolve().parents[4]


def link(directory: Path, names: list[str] | None = None, source: Path | None = None) -> bool:
    """Create the commands in a directory; return whether they are the C program. Other files there stay; a program
    that is up to date is not built again. `source`: another directory of the same file system that has the program.
    Raises OSError if the commands cannot be written."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / bash_env.FILE, bash_env.text([directory, *([source] if source else [])]))
    program = (source or directory) / PROGRAM
    built = current(program) or build(program)
    for name in names or sorted(everything().answers.keys() - LAUNCHERS):
        path = directory / name
        temporary = directory / f".{name}.{os.getpid()}.{token_hex(4)}"
        if built:
            os.link(program, temporary)
        else:
            temporary.write_text(script(name), encoding="utf-8")
            temporary.chmod(0o755)
        os.replace(temporary, path)
        temporary.unlink(missing_ok=True)  # os.replace does nothing if both names are links to the same file
    return built


def script(name: str) -> str:
    """Return the command as a script that starts Python."""
    words = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
             "from vrm.ext.slurm.calls.client import main; sys.exit(main(sys.argv[1:]))", name]
    step = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {START}"]
    first = f'[ -z "${job_variables.FOLDER}" ] || exec {shlex.join(step)} "$@"\n' if name == "srun" else ""
    return f'#!/bin/sh\n{first}exec {shlex.join(words)} "$@"\n'


def scripts() -> dict[str, str]:
    """Return all commands except the launchers as such scripts, by name."""
    return {name: script(name) for name in sorted(everything().answers.keys() - LAUNCHERS)}


def _recipe() -> Recipe:
    """Return the build instructions of the program, with its constants as options. An ASCII-only JSON string is also
    a valid C string."""
    given = {"PYTHON": json.dumps(sys.executable), "LOCAL": json.dumps(f" {' '.join(sorted(everything().local))} "),
             "ROOT": json.dumps(repr(str(ROOT))), "STEP": json.dumps(START),
             "PROGRAM": json.dumps(PROGRAM), "READING": json.dumps(f" {' '.join(sorted(everything().reading))} "),
             "PATIENCE": str(round(1000 * wire.PATIENCE)), "SAYS_AFTER": str(round(1000 * wire.SAYS_AFTER)),
             "GIVES_UP": json.dumps(wire.timeout_message()), "WAITS": json.dumps(wire.waits())}
    return Recipe("client", "the commands", SOURCE, options=[f"-D{name}={value}" for name, value in given.items()],
                  flags=compiling.PROGRAM)


def current(program: Path) -> bool:
    """Return whether the program exists and equals the one that `build` would make."""
    try:
        return program.with_suffix(".sum").read_text(encoding="utf-8") == _recipe().mark and os.access(program, os.X_OK)
    except OSError:
        return False


def ready() -> bool:
    """Return whether the program is already compiled."""
    try:
        return _recipe().kept().is_file()
    except CompileError:
        return False


def build(program: Path) -> bool:
    """Build the program, which is compiled once for all runs. Return False if there is no compiler, or if it fails."""
    recipe = _recipe()
    try:
        try:
            kept = recipe.made()
        except CacheError:  # the cache cannot be written: compile for this run only
            recipe.build(program)
        else:
            with tempfile.TemporaryDirectory(dir=program.parent, prefix=".build.") as folder:
                os.replace(shutil.copy(kept, folder), program)
    except CompileError:
        program.unlink(missing_ok=True)
        return False
    write_atomically(program.with_suffix(".sum"), recipe.mark)
    return True
