"""Installs vrm on another machine in a directory of its own: the local vrm is packed as a wheel and installed in an
environment next to those of earlier versions.

Each version has a directory that is never changed once it is complete, and the link `current` points to the one in
use. So a running manager keeps the files with which it started, and an interrupted installation changes nothing."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import shlex
import zipfile
from dataclasses import dataclass
from pathlib import Path
from collections.abc import Callable, Sequence

import vrm
from vrm.ext.remote.host import HOME, Host
from vrm.system.errors import RunError

SOURCES = ("README.md", "build.py", "*.c", "common/*.[ch]")
"""The bundled benchmarks of a checkout, as setup.py puts them into a wheel."""

MOMENT = (2020, 1, 1, 0, 0, 0)
"""Modification time of all files in the wheel, so that the same vrm makes the same wheel."""

INSTALL = """\
set -e
new="$home/$key" wheels="$home/$key.wheels"
mkdir -p "$home"
exec 9>"$home/.lock"
! command -v flock >/dev/null || flock 9
if [ ! -e "$new/complete" ]; then
  rm -rf "$new"
  "$python" -m venv "$new" >"$home/.log" 2>&1 || "$python" -m venv --without-pip --clear "$new" >"$home/.log" 2>&1 || {
    tail -n 3 "$home/.log" >&2; exit 3; }
  if "$new/bin/python" -m pip --version >/dev/null 2>&1
  then set -- "$new/bin/python" -m pip
  elif "$python" -m pip --version >/dev/null 2>&1
  then set -- "$python" -m pip --python "$new/bin/python"
  else exit 4
  fi
  set -- "$@" install --quiet --disable-pip-version-check
  [ -z "$offline" ] || set -- "$@" --no-index --find-links "$wheels"
  "$@" "$wheels/$wheel" >"$home/.log" 2>&1 || { grep . "$home/.log" | tail -n 3 >&2; exit 5; }
  "$new/bin/vrm" --version >"$home/.log" 2>&1 || { tail -n 3 "$home/.log" >&2; exit 6; }
  : >"$new/complete"
fi
rm -rf "$wheels"
ln -sfn "$key" "$home/current.new"
mv -fT "$home/current.new" "$home/current"
for old in "$home"/*/complete; do
  [ "$old" = "$new/complete" ] || [ "$old" = "$home/current/complete" ] || echo "${old%/complete}"
done
"""

FAILED = {
    3: "Python makes no virtual environment there; install python3-venv, or name another Python with --python",
    4: "its Python has no pip; install python3-pip or python3-venv, or name another Python with --python",
    5: "pip could not install it; without internet there, give --wheelhouse DIR (docs/how-to/remote.md), with wheels "
       "for its Python and processor",
    6: "what was installed does not start"}

FIND = """\
for each in $pythons; do
  found=$(command -v "$each") && "$found" -c '
import sys, platform
sys.exit(1) if sys.version_info < (3, 10) else print("Python %d.%d" % sys.version_info[:2], platform.machine())
' 2>/dev/null && printf '%s\\n' "$found" "HOME_OF_VRM" && exit 0
done
exit 1
""".replace("HOME_OF_VRM", HOME)

PYTHONS = "python3 python3.13 python3.12 python3.11 python3.10"


@dataclass(frozen=True)
class RemoteSetup:
    """Facts about the other machine: Python's path, vrm's directory, and a description."""

    python: str
    home: str
    about: str


def setup(host: Host, wheelhouse: str, python: str, tell: Callable[[str], None]) -> None:
    """Install or update vrm on the other machine. Raises RunError with what is missing."""
    wheels = {name: data for name, data in (house(wheelhouse) if wheelhouse else {}).items()
              if not name.startswith("vrm-")}
    name, content = wheel()
    there = look(host, python)
    wheels[name] = content
    digest = hashlib.sha256(there.python.encode())
    for each in sorted(wheels):
        digest.update(each.encode() + hashlib.sha256(wheels[each]).digest())
    key = f"{vrm.__version__}-{digest.hexdigest()[:12]}"
    folder = f"{there.home}/{key}"
    if host.said(f"[ -e {shlex.quote(folder)}/complete ]")[0]:
        send(host, f"{folder}.wheels", wheels, tell)
        tell(f"installing it with {there.python} ({there.about})")
    status, old, errors = host.said(settings(
        home=there.home, key=key, python=there.python, wheel=name, offline=wheelhouse) + INSTALL)
    if status:
        raise RunError(f"vrm was not installed on {host.name}: {FAILED.get(status, f'status {status}')}"
                       + "".join(f"\n  {line}" for line in errors.strip().splitlines()[-3:]))
    tell(f"vrm {vrm.__version__} is on {host.name}, in {folder}")
    for line in old.splitlines():
        if line.startswith(f"{there.home}/"):
            tell(f"an earlier one is still there; when no run uses it: rm -r {shlex.quote(line)}")


def settings(**values: str) -> str:
    """Return the beginning of a script: assignments of shell variables."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def look(host: Host, python: str) -> RemoteSetup:
    """Return the Python to use on the other machine, and the directory for vrm."""
    status, output, _ = host.said(settings(pythons=python or PYTHONS) + FIND)
    lines = output.splitlines()[-3:]
    if status or len(lines) < 3 or not lines[0].startswith("Python "):
        wanted = f"{python} is not there, or is older than 3.10" if python else "no Python from 3.10 on is found"
        raise RunError(f"{wanted} on {host.name}; load it in the start file of your shell there, or name one: "
                       "setup --python PATH")
    return RemoteSetup(lines[1], lines[2], lines[0])


def house(folder: str) -> dict[str, bytes]:
    """Return the wheels of a directory by name. Raises RunError if there are none."""
    paths = sorted(Path(folder).glob("*.whl"))
    if not paths:
        raise RunError(f"{folder} has no wheels; `pip wheel --wheel-dir {folder} ~/vrm` makes them")
    return {path.name: path.read_bytes() for path in paths}


def send(host: Host, folder: str, wheels: dict[str, bytes], tell: Callable[[str], None]) -> None:
    """Copy the wheels to a remote directory."""
    status, _, errors = host.said(f"umask 077; rm -rf {shlex.quote(folder)}; mkdir -p {shlex.quote(folder)}")
    if status:
        raise RunError(f"cannot make {folder} on {host.name}: {errors.strip()}")
    size = sum(map(len, wheels.values()))
    tell(f"sending {len(wheels)} wheel{'s' * (len(wheels) > 1)}, {size / 1e6:.1f} MB")
    files = host.files()
    for name, data in wheels.items():
        files.putfo(io.BytesIO(data), f"{folder}/{name}", len(data))


def wheel() -> tuple[str, bytes]:
    """Make a wheel of the running vrm, whether it is installed or a checkout; return its name and content. Raises
    RunError."""
    package = Path(vrm.__file__).parent
    files = {f"vrm/{path.relative_to(package)}": path for path in sorted(package.rglob("*"))
             if path.is_file() and "__pycache__" not in path.parts}
    bundled = package.parent / "npb"
    if not (package / "npb").is_dir():
        files.update((f"vrm/npb/{path.relative_to(bundled)}", path)
                     for pattern in SOURCES for path in sorted(bundled.glob(pattern)))
    return pack("vrm", {name: path.read_bytes() for name, path in files.items()})


def pack(project: str, files: dict[str, bytes], tags: Sequence[str] = ("py3-none-any",)) -> tuple[str, bytes]:
    """Return the name and content of a wheel with these files, for a project that is installed here."""
    try:
        known = importlib.metadata.distribution(project)
    except importlib.metadata.PackageNotFoundError as error:
        raise RunError(f"{project} is not installed here: its metadata is missing; install it with pip") from error
    stem = f"{project.replace('-', '_')}-{known.version}"
    about = f"{stem}.dist-info"
    texts = {"METADATA": known.read_text("METADATA") or known.read_text("PKG-INFO") or "",
             "entry_points.txt": known.read_text("entry_points.txt") or "",
             "WHEEL": "Wheel-Version: 1.0\nGenerator: vrm\nRoot-Is-Purelib: true\n"
                      + "".join(f"Tag: {tag}\n" for tag in tags)}
    whole = {**files, **{f"{about}/{name}": text.encode() for name, text in texts.items() if text}}
    record: list[str] = []
    for name, data in whole.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}\n")
    whole[f"{about}/RECORD"] = "".join([*record, f"{about}/RECORD,,\n"]).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in whole.items():
            archive.writestr(zipfile.ZipInfo(name, MOMENT), data, zipfile.ZIP_DEFLATED)
    return f"{stem}-{tags[0]}.whl", made.getvalue()
