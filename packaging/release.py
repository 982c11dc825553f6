#!/usr/bin/env python3
"""Make the files of a release of the commit that is checked out: `python3 tasks.py release` runs this.

dist/ gets the sdist and the wheel, built twice in two directories and compared; requirements.txt with the hash of each
dependency; sbom.json (CycloneDX) of an installation of the wheel; recipes/, those of this directory filled in;
SHA256SUMS.

--draft         also while setup.cfg names no home page and no maintainer
--only-build    without requirements.txt and sbom.json, which need a network
--out DIR       write there (default: dist)
"""

from __future__ import annotations

import argparse
import configparser
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "packaging"
PUBLISHER = ("url", "download_url", "maintainer", "maintainer_email")
MISSING = "FILL-IN"
"""What the recipes of a draft have where setup.cfg has nothing."""
RECIPES = ("apptainer", "conda", "docker", "easybuild", "modules", "spack")


def run(*argv: object, cwd: Path = ROOT, **variables: str) -> str:
    """What a command prints; ends the program when it fails."""
    done = subprocess.run([str(word) for word in argv], cwd=cwd, env={**os.environ, **variables}, text=True,
                          check=False, stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"release: failed: {' '.join(str(word) for word in argv)}")
    return done.stdout


def setup() -> configparser.ConfigParser:
    """What setup.cfg says."""
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hook(name: str, tree: Path, out: Path, epoch: str) -> Path:
    """Call a function of setuptools' build backend in a tree; the file that it writes."""
    code = f"from setuptools import build_meta; build_meta.{name}({str(out)!r})"
    out.mkdir(exist_ok=True)
    run(sys.executable, "-c", code, cwd=tree, SOURCE_DATE_EPOCH=epoch)
    made, = out.iterdir()
    return made


def normalised(sdist: Path, out: Path, epoch: int) -> Path:
    """Write the sdist again with the commit's time, no owners and the same modes on every machine; its path."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    path = out / sdist.name
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))
    return path


def build(out: Path, epoch: str) -> list[Path]:
    """Build the sdist from the commit, and the wheel from the sdist, in a directory of their own."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        tree = place / "tree"
        tree.mkdir()
        run("git", "archive", "--output", place / "tree.tar", "HEAD")
        run("tar", "-xf", place / "tree.tar", "-C", tree)
        sdist = normalised(hook("build_sdist", tree, place / "sdist", epoch), out, int(epoch))
        run("tar", "-xf", sdist, "-C", place)
        wheel = hook("build_wheel", place / sdist.name.removesuffix(".tar.gz"), place / "wheel", epoch)
        return [sdist, Path(shutil.move(wheel, out / wheel.name))]


def build_twice(out: Path, epoch: str) -> list[Path]:
    """Build in two directories; ends the program when the files differ."""
    files = build(out, epoch)
    with tempfile.TemporaryDirectory() as again:
        for first, second in zip(files, build(Path(again), epoch)):
            if sha256(first) != sha256(second):
                raise SystemExit(f"release: two builds of {first.name} differ: {sha256(first)}, {sha256(second)}")
    return files


def requirements(out: Path) -> Path:
    """Write the versions of all dependencies that CI tests, for every Python, with the hashes of their files."""
    path = out / "requirements.txt"
    oldest = setup()["options"]["python_requires"].removeprefix(">=")
    run(Path(sys.executable).with_name("uv"), "pip", "compile", "setup.cfg", "--extra", "plots", "--universal",
        "--python-version", oldest, "--constraint", ".ci/constraints.txt", "--generate-hashes", "--no-annotate",
        "--no-header", "--quiet", "--output-file", path)
    path.write_text(
        "# What vrm[plots] needs.\n"
        "# With a network: pip download --require-hashes --dest wheelhouse -r requirements.txt\n"
        "# Without one: pip install --no-index --find-links wheelhouse --require-hashes -r requirements.txt\n"
        + path.read_text())
    return path


def bill_of_materials(out: Path, wheel: Path, wanted: Path) -> Path:
    """Install the wheel and what it requires, by hash, into a fresh environment; write what is in it as CycloneDX."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        venv.create(place / "env", with_pip=True)
        python = place / "env/bin/python"
        run(python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", wanted, cwd=place)
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=place)
        print(run(place / "env/bin/vrm", "--version", cwd=place).strip(), "runs from the wheel")
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools", cwd=place)
        path = out / "sbom.json"
        run(Path(sys.executable).with_name("cyclonedx-py"), "environment", "--output-reproducible",
            "--output-file", path, python, cwd=place)
    bill = json.loads(path.read_text())
    product, = (part for part in bill["components"] if part["name"] == "vrm")
    bill["components"].remove(product)
    product.pop("externalReferences", None)  # the wheel's path on this machine
    bill["metadata"]["component"] = {**product, "type": "application",
                                     "hashes": [{"alg": "SHA-256", "content": sha256(wheel)}]}
    path.write_text(json.dumps(bill, indent=2) + "\n")
    return path


def fill_in(text: str, sdist_sha256: str) -> str:
    """A recipe with the values of setup.cfg, and the hash of the sdist, in place of its @NAMES@."""
    known = setup()["metadata"]
    for name, value in {
            "VERSION": version(), "SHA256": sdist_sha256, "DESCRIPTION": known["description"],
            "HOME": known.get("url", f"https://{MISSING}"), "FILES": known.get("download_url", f"https://{MISSING}"),
            "MAINTAINER": known.get("maintainer", MISSING)}.items():
        text = text.replace(f"@{name}@", value)
    return text


def version() -> str:
    """The version, from the file of the package that has it."""
    text = (ROOT / "vrm/__init__.py").read_text()
    return text.partition('__version__ = "')[2].partition('"')[0]


def recipes(out: Path, sdist_sha256: str) -> None:
    """Write the recipes, filled in."""
    for source in sorted(path for folder in RECIPES for path in (HERE / folder).rglob("*") if path.is_file()):
        text = fill_in(source.read_text(), sdist_sha256)
        path = out / source.relative_to(HERE)
        if path.suffix == ".eb":  # EasyBuild wants the version and the toolchain in the name
            toolchain = text.partition("'name': 'foss', 'version': '")[2].partition("'")[0]
            path = path.with_name(f"vrm-{version()}-foss-{toolchain}.eb")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main(argv: list[str]) -> int:
    """Make the release; 0, or a message and 1."""
    parser = argparse.ArgumentParser(prog="tasks.py release", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only-build", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    empty = [name for name in PUBLISHER if not setup()["metadata"].get(name)]
    if empty and not options.draft:
        raise SystemExit(f"release: setup.cfg, [metadata]: {', '.join(empty)}: missing; whoever publishes vrm fills "
                         "them in. To build a draft without them: python3 tasks.py release --draft")
    changed = run("git", "status", "--porcelain", "--untracked-files=no").strip()
    if changed:
        raise SystemExit(f"release: these files are not committed; a release is made from a commit:\n{changed}")
    os.umask(0o022)
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    sdist, wheel = build_twice(out, run("git", "log", "-1", "--format=%ct").strip())
    if not options.only_build:
        bill_of_materials(out, wheel, requirements(out))
    recipes(out / "recipes", sha256(sdist))
    sums = "".join(f"{sha256(path)}  {path.relative_to(out)}\n" for path in sorted(out.rglob("*")) if path.is_file())
    (out / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    if empty:
        print(f"a draft: setup.cfg has no {', '.join(empty)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
