#!/usr/bin/env python3
"""Set up vrm in a virtual environment of its own and run the demonstration or the tests.

python3 tasks.py demo            install, build the benchmark programs, run a queue of real MPI jobs twice
python3 tasks.py test            install, run all tests, several at a time
python3 tasks.py test --quick    the same without those that need MPI, the test cluster, or long
python3 tasks.py test --again    at most five that failed run once more, one at a time: those that fail again count
python3 tasks.py lint            install, check types (mypy) and code (ruff)
python3 tasks.py site            install, build the documentation as pages for a browser: site/
python3 tasks.py cluster         install, open a shell on a Slurm cluster of two nodes on this machine (as root)
python3 tasks.py world           install, run simulated worlds for a minute (docs/reference/reliability.md)
python3 tasks.py release         install, build the files of a release of this commit: dist/ (packaging/release.py)

Further arguments of `test` go to pytest: `-n 1` for one test at a time, `-k NAME`, a file.

Needs Python 3.10 or newer and a C compiler; standard library only. An Open MPI of the system is
used when mpirun and mpicc are there, else one is installed beside vrm.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = Path(os.environ.get("VRM_VENV", ROOT / ".venv"))
PYTHON = VENV / "bin" / "python"


def say(text: str) -> None:
    """Print what is being done."""
    print(f"== {text}", flush=True)


def run(*argv: object, env: dict[str, str] | None = None) -> int:
    """Run a command in the project's folder and return its exit status."""
    return subprocess.run([str(word) for word in argv], cwd=ROOT, env=env, check=False).returncode


def must(*argv: object) -> None:
    """Run a command that has to succeed; ends the program when it does not."""
    if run(*argv):
        raise SystemExit(f"tasks.py: failed: {' '.join(str(word) for word in argv)}")


def environment() -> None:
    """Make the virtual environment, also where Python comes without ensurepip (Debian)."""
    if not PYTHON.exists():
        say(f"virtual environment in {VENV}")
        made = subprocess.run([sys.executable, "-m", "venv", VENV], cwd=ROOT, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if made.returncode:
            shutil.rmtree(VENV, ignore_errors=True)
            if not shutil.which("pip3") and not shutil.which("pip"):
                raise SystemExit("tasks.py: Python cannot make a virtual environment here: "
                                 "install python3-venv (apt-get install python3-venv) and "
                                 "run this again")
            must(sys.executable, "-m", "venv", "--without-pip", VENV)


def pip(*arguments: object) -> None:
    """Install into the environment, with the pip in it or the one of the system."""
    with_pip = subprocess.run([PYTHON, "-c", "import pip"], check=False,
                              stderr=subprocess.DEVNULL).returncode == 0
    installer = [PYTHON, "-m", "pip"] if with_pip else [
        sys.executable, "-m", "pip", "--python", PYTHON]
    must(*installer, "install", "--quiet", "--disable-pip-version-check", *arguments)


def mpi_tools() -> list[str]:
    """mpirun and mpicc of the system, when both are there."""
    found = [shutil.which("mpirun"), shutil.which("mpicc")]
    return [tool for tool in found if tool] if all(found) else []


def install(*extras: str) -> str:
    """Install vrm with extras, and an Open MPI where there is none; the mpicc to use."""
    environment()
    tools = mpi_tools()
    wanted = list(extras) if tools else [*extras, "mpi"]
    mark, state = VENV / "-".join(["installed", *wanted]), requirements()
    installed = any(VENV.glob("lib/python*/site-packages/vrm-*.dist-info"))
    if not installed or not mark.exists() or mark.read_text(encoding="utf-8") != state:
        say("installing vrm" + ("" if tools else " and Open MPI (none on this system)"))
        pip("--editable", f".[{','.join(wanted)}]" if wanted else ".")
        mark.write_text(state, encoding="utf-8")
    return tools[1] if tools else str(VENV / "bin" / "mpicc")


def requirements() -> str:
    """Return the text of the files on which an installation depends: pip takes seconds to do nothing."""
    constraints = os.environ.get("PIP_CONSTRAINT", "")
    names = ["setup.cfg", "setup.py", "pyproject.toml", "vrm/__init__.py", *constraints.split()]
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()]
    return "\n".join([str(ROOT), constraints, *texts])


def compiler() -> None:
    """End with what to install when there is no C compiler."""
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        raise SystemExit("tasks.py: no C compiler: install one (apt-get install gcc libc6-dev) "
                         "and run this again")


def root_environment() -> dict[str, str]:
    """The environment for mpirun: as root it refuses unless two variables say that this is meant."""
    env = dict(os.environ)
    if os.geteuid() == 0:
        say("running as root: OMPI_ALLOW_RUN_AS_ROOT=1 is set for this command")
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return env


def demo() -> int:
    """Install, build, run the demonstration queue under compact and under strip, and compare: a picture, a sentence."""
    compiler()
    mpicc = install("plots")
    say("building the benchmark programs: npb/bin")
    must(PYTHON, "npb/build.py", "--apps", "ep,is,cg", "--classes", "S,W,A", "--mpicc", mpicc)
    env = root_environment()
    vrm = VENV / "bin" / "vrm"
    for config in ("config/compact.yaml", "config/strip.yaml"):
        say(f"vrm -c {config} --once")
        status = run(vrm, "-c", config, "--once", "--here", "--fresh", env=env)
        if status:
            return status
    must(vrm, "compare", "logs/compact", "logs/strip", "--out", "logs/compare.png")
    compact, strip = (makespan(ROOT / "logs" / policy / "jobs.csv") for policy in ("compact", "strip"))
    say(f"strip: {abs(1 - strip / compact):.0%} {'sooner' if strip <= compact else 'later'} done than under compact "
        f"({strip:.1f} s, {compact:.1f} s)")
    say(f"""look at it:
  export PATH={VENV / 'bin'}:$PATH
  vrm queue -c config/strip.yaml --all
  vrm report logs/compact logs/strip --out logs/report
and open logs/compare.png and logs/report/report.html""")
    return 0


def makespan(file: Path) -> float:
    """Seconds from the first submission to the last end in a jobs.csv."""
    with open(file, encoding="utf-8", newline="") as rows:
        times = [(float(row["submit"]), float(row["end"])) for row in csv.DictReader(rows)]
    return max(end for _, end in times) - min(submit for submit, _ in times)


def test(arguments: list[str]) -> int:
    """Install with what the tests want, and run them; `--quick`: without the long ones."""
    compiler()
    install("test")
    # Most tests wait for processes: two for each core keep the cores busy.
    options = ["-n", str(min(2 * len(os.sched_getaffinity(0)), 8)), "--dist", "loadgroup"]
    if "--quick" in arguments:
        options += ["-m", "not (mpi or testbed or slow)"]
    again = "--again" in arguments
    arguments = [word for word in arguments if word not in ("--quick", "--again")]
    say(" ".join(["pytest", *options, *arguments]))
    env = root_environment()
    # Tests start vrm thousands of times: what it imports is compiled once, and NumPy starts no threads.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as cache:
        kept = ["-o", f"cache_dir={cache}"] if again else []
        status = run(PYTHON, "-m", "pytest", *kept, *options, *arguments, env=env)
        failed = Path(cache, "v", "cache", "lastfailed")
        # Without the name of their group, which pytest-xdist adds.
        names = [re.sub(r"@\w+$", "", name) for name in json.loads(failed.read_text())] if failed.exists() else []
        if status != 1 or not 0 < len(names) <= 5:
            return status
        status = run(PYTHON, "-m", "pytest", *kept, *names, env=env)
    say(f"failed beside others, {'and alone' if status else 'passed alone: they need a fix'}: {' '.join(names)}")
    return status


def lint() -> int:
    """Install with what the checks want, and run both; 0 when neither finds anything."""
    install("test")
    say("ruff check, mypy")
    rooms = ["model", "scheduling", "run", "simulation", "ext/energy", "ext/lending", "ext/planning",
             "ext/study/validation"]
    simple = ["--select", "C901", "--config", "lint.mccabe.max-complexity=10", "vrm/ext/study/experiment/matrix.py",
              *(f"vrm/{room}" for room in rooms)]  # what decides
    return (run(PYTHON, "-m", "ruff", "check", "--quiet") | run(PYTHON, "-m", "ruff", "check", "--quiet", *simple)
            | run(PYTHON, "-m", "mypy"))


def cluster(words: list[str]) -> int:
    """Install, start a cluster of two nodes, open a shell on its login node or run the words there, and end it."""
    install()
    testbed = [PYTHON, "tests/support/testbed.py"]
    must(*testbed, "up", "2")
    if not words:
        say("a shell on the login node: `sinfo` shows the nodes n0 and n1; `exit` ends the cluster and its jobs")
    try:
        first = f'PATH={VENV / "bin"}:$PATH exec "$@"'
        return run(*testbed, "exec", "login", "sh", "-c", first, "sh", *(words or ["bash"]))
    finally:
        must(*testbed, "down")


def world(words: list[str]) -> int:
    """Install with what the tests want, and run the real manager in worlds that are simulated (tests/world)."""
    install("test")
    return run(PYTHON, "tests/world/run.py", *words)


def release(arguments: list[str]) -> int:
    """Install with what builds a release, and build it."""
    install("release")
    return run(PYTHON, "packaging/release.py", *arguments)


def site() -> int:
    """Install with what builds the pages, and build them; a warning, as for a link that leads nowhere, is an error."""
    install("docs")
    say("mkdocs build --strict: site/index.html")
    return run(PYTHON, "-m", "mkdocs", "build", "--strict", "--quiet", env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})


def main(argv: list[str]) -> int:
    """Run the task named first."""
    if sys.version_info < (3, 10):
        raise SystemExit("tasks.py: Python 3.10 or newer is needed; "
                         f"this is {sys.version.split()[0]}")
    if argv[:1] == ["demo"] and len(argv) == 1:
        return demo()
    if argv[:1] == ["test"]:
        return test(argv[1:])
    if argv == ["lint"]:
        return lint()
    if argv == ["site"]:
        return site()
    if argv[:1] == ["cluster"]:
        return cluster(argv[1:])
    if argv[:1] == ["world"]:
        return world(argv[1:])
    if argv[:1] == ["release"]:
        return release(argv[1:])
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
