"""Brings the runner (`runner.py`) to a node as text through the pipe to it, since a file on a shared file system would
be opened on all nodes at the same moment.

Python on the node gets a few lines as its argument, the boot. The boot reports that it runs, with a line like those of
a runner that has nothing after the name. The relay then sends the modules, each with the path of its file, and the
boot runs them.
"""

from __future__ import annotations

import json
import marshal
import os
import zlib

MODULES = ("wire", "starting", "serving", "proc", "claims", "devices", "agent", "runner")
"""The modules in the folder `vrm/live/runner`, each after those that it imports."""

MARK = "# The runner of vrm on this node\n"
"""The first line of the boot, for people who look at the list of processes."""

_BOOT = MARK + """\
import os, sys, marshal, types, zlib
name, other = sys.argv[1:3]
if sys.version_info < (3, 8) and os.access(other, os.X_OK) and os.path.realpath(other) != os.path.realpath(sys.executable):
    os.execv(other, [other, "-I", "-S", "-c", sys.argv[3], *sys.argv[1:]])
if name.startswith("$"):
    name = os.environ.get(name[1:], "")
os.write(1, b"\\1vrm " + os.fsencode(name) + b" \\n")
def read(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            sys.exit()
        data += part
    return data
for file, text in marshal.loads(zlib.decompress(read(int.from_bytes(read(4), "little")))):
    module = types.ModuleType(os.path.basename(file)[:-3])
    module.__file__ = file
    sys.modules[module.__name__] = module
    exec(compile(text, file, "exec"), module.__dict__)
module.main(name)
"""


def boot() -> str:
    """Return the argument of `python -c`, in one line that any login shell passes on. After it follow the node's name
    (or `$` and the variable that holds it), another Python that may be newer than 3.7, and this argument again."""
    return f"exec({json.dumps(_BOOT)})"


def program() -> bytes:
    """Return what the boot reads: the compressed text of all modules, with its length in front."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    modules = []
    for name in MODULES:
        path = os.path.join(root, "runner", name + ".py")
        with open(path, encoding="utf-8") as file:
            modules.append((path, file.read()))
    data = zlib.compress(marshal.dumps(modules, 2), 9)
    return len(data).to_bytes(4, "little") + data
