"""`vrm script`: exact scripts, refused wishes, and on the test cluster real batch jobs that run a
queue from a written script, are warned before the end, and follow one another in a chain."""

from __future__ import annotations
from support import warm

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from conftest import Site, wait_until
from support.testbed import Testbed
from vrm import cli
from vrm.ext.begin.batch_script import BatchScript, BatchScriptError, script, submit_commands
from vrm.results.jobs import read_jobs

ROOT = Path(cli.__file__).resolve().parent.parent
VRM = ("/opt/vrm/bin/vrm", "-c", "/home/me/my study/vrm.yaml")


def directives(text: str) -> list[str]:
    """The lines that the batch system reads."""
    return [line for line in text.splitlines() if re.match(r"#(SBATCH|PBS) ", line)]


def runs(text: str) -> list[str]:
    """The lines that the shell runs."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


# ------------------------------------------------------------------------------------ exact scripts


def test_slurm_whole_nodes() -> None:
    text = script("slurm", BatchScript(VRM, 8, 7200, exclusive=True))
    assert text.startswith("#!/bin/bash\n# vrm on 8 nodes for 02:00:00. Submit it with:\n"
                           "#   sbatch FILE\n")
    assert directives(text) == [f"#SBATCH {option}" for option in (
        "--job-name=vrm", "--nodes=8", "--time=02:00:00", "--exclusive", "--signal=B:USR1@120",
        "--no-kill", "--output=vrm-%j.out", "--open-mode=append")]
    assert runs(text) == ["exec /opt/vrm/bin/vrm -c '/home/me/my study/vrm.yaml' \"$@\""]


@pytest.mark.parametrize("known, flags, there", [
    ("--stepmgr", "Alloc,Contain,X11", True), ("--stepmgr", "Alloc", False), ("--spread-job", "Contain", False)])
def test_steps_are_made_on_the_job_where_slurm_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str, flags: str,
                                                   there: bool) -> None:
    for name, says in (("sbatch", f"  {known}  enable stepmgr"), ("scontrol", f"PrivateData = none\nPrologFlags             = {flags}")):
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '%s\\n' '{says}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert ("#SBATCH --stepmgr" in directives(script("slurm", BatchScript(VRM, 8, 7200, exclusive=True)))) == there


def test_slurm_with_everything() -> None:
    text = script("slurm", BatchScript(
        VRM, 1, 90061, "study", cores=20, memory=1400, account="p200", queue="compute,long",
        modules=("gcc/12", "openmpi/4.1"), warning=300, chain=3, file="my job.sh",
        directives=("--qos=long",)))
    assert "#   for i in 1 2 3; do sbatch 'my job.sh'; done\n" in text
    assert "# vrm on 1 node for 25:01:01." in text
    assert directives(text) == [f"#SBATCH {option}" for option in (
        "--job-name=study", "--nodes=1", "--ntasks-per-node=20", "--cpus-per-task=1",
        "--ntasks-per-core=1", "--time=25:01:01", "--mem-per-cpu=1400M", "--signal=B:USR1@300",
        "--no-kill",
        "--dependency=singleton", "--account=p200", "--partition=compute,long",
        "--output=study-%j.out", "--open-mode=append", "--qos=long")]
    assert text.startswith("#!/bin/bash -l\n")  # where `module` is defined
    assert runs(text)[0] == "module load gcc/12 openmpi/4.1 || exit 2"
    assert runs(text)[-1].startswith("exec /opt/vrm/bin/vrm ")


def test_pbs_with_everything() -> None:
    text = script("pbs", BatchScript(
        VRM, 8, 7200, "a-name-longer-than-fifteen", cores=20, memory=1400, exclusive=True,
        account="p200", queue="workq", modules=("openmpi",), chain=2, file="f"))
    assert directives(text) == [f"#PBS {option}" for option in (
        "-N a-name-longer-t", "-l select=8:ncpus=20:mpiprocs=20:ompthreads=1:mem=28000mb",
        "-l place=scatter:excl", "-l walltime=02:00:00", "-S /bin/bash", "-j oe", "-A p200",
        "-q workq")]
    assert runs(text) == [
        'cd "$PBS_O_WORKDIR" || exit 2',
        'exec >>"a-name-longer-than-fifteen-${PBS_JOBID%%.*}.out" 2>&1',
        "export PBS_WALLTIME=${PBS_WALLTIME:-7200}",
        "module load openmpi || exit 2",
        "exec /opt/vrm/bin/vrm -c '/home/me/my study/vrm.yaml' \"$@\""]
    assert submit_commands("pbs", BatchScript(VRM, 8, 7200, chain=3, file="f")) == [
        "id=$(qsub f)", "for i in 2 3; do id=$(qsub -W depend=afterany:$id f); done"]


@pytest.mark.parametrize("wanted, loaded, modules", [
    ([], "", ""), ([], "python/3.11:openmpi/4.1", "python/3.11 openmpi/4.1"),
    (["gcc/12", "openmpi/4.1"], "slurm:python/3.11:openmpi/5", "python/3.11 gcc/12 openmpi/4.1"),
    (["python/3.12"], "python/3.11", "python/3.12"), (["gcc"], "Anaconda3:a;b", "Anaconda3 gcc"),
    (["gcc"], "", "gcc")])
def test_the_modules_of_the_python_under_vrm_are_loaded(
        wanted: list[str], loaded: str, modules: str, config: Path,
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOADEDMODULES", loaded)
    words = ["script", "--pbs", "-N", "1", "-t", "1h", "--cores", "2", "-c", str(config)]
    assert cli.main([*words, *(["--module", *wanted] if wanted else [])]) == 0
    found = [line for line in runs(capsys.readouterr().out) if line.startswith("module")]
    assert found == ([f"module load {modules} || exit 2"] if modules else [])


def test_the_chains_of_two_directories_of_one_name_do_not_wait_for_each_other(
        tmp_path: Path) -> None:
    from vrm.ext.begin.commands.script import batch_name
    names = [batch_name(str(tmp_path / place / "run" / "vrm.yaml"), alone=True) for place in "ab"]
    assert len(set(names)) == 2 and all(name.startswith("vrm-run-") for name in names)
    assert batch_name(str(tmp_path / "a" / "run" / "vrm.yaml")) == "vrm-run"


@pytest.mark.parametrize("system, more, mend", [
    ("slurm", {}, "--cores N, or --exclusive"), ("pbs", {"exclusive": True}, "--cores N"),
    ("slurm", {"cores": 4, "warning": 30}, "--signal 60 or more"),
    ("slurm", {"cores": 4, "walltime": 120}, "a smaller --signal or a larger -t"),
    ("pbs", {"cores": 4, "warning": 300}, "End: {Margin: 300}"),
    ("slurm", {"cores": 4, "file": "a\nb"}, "choose another"),
])
def test_what_cannot_be_had_is_refused_with_the_mend(system: str, more: dict[str, Any],
                                                     mend: str) -> None:
    with pytest.raises(BatchScriptError, match=re.escape(mend)):
        script(system, BatchScript(**{"command": VRM, "nodes": 8, "walltime": 7200, **more}))


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize("system", ["slurm", "pbs"])
@given(words=st.lists(WORDS, min_size=1, max_size=4), file=WORDS)
@pytest.mark.slow
def test_any_words_reach_vrm_as_they_are(system: str, words: list[str], file: str) -> None:
    """Words of the command as the shell takes them apart; the file's name stays in comments."""
    command = ("/usr/bin/printf", "%s\\0", *words)
    try:
        text = script(system, BatchScript(command, 1, 7200, cores=1, file=file))
    except BatchScriptError:
        assert not file.isprintable()
        return
    assert tuple(shlex.split(text[text.index("\nexec /usr") + 5:])) == (*command, "$@")
    assert all(line.startswith("#") for line in text[:text.index("\n\n")].splitlines())


# ------------------------------------------------------------------------------- the command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of 2 x 4 cores in a directory with a space."""
    place = tmp_path / "my study"
    (place / "bin").mkdir(parents=True)
    path = place / "vrm.yaml"
    path.write_text("Applications: {Path: bin}\nSockets: 2\nCores: 4\n")
    return path


def call(*words: object, cwd: Any = None) -> subprocess.CompletedProcess[str]:
    """Run `vrm script`."""
    return warm.run(["script", *words], timeout=60, cwd=cwd)


@pytest.mark.parametrize("system", ["slurm", "pbs"])
@pytest.mark.slow
def test_a_written_script_is_valid_and_names_this_vrm(system: str, config: Path) -> None:
    out = config.parent / "job.sh"
    done = call(f"--{system}", "-N", 8, "-t", "2h", "-c", config.name, "-o", out, "--once",
                "--chain", 2, "--module", "a", "b", cwd=config.parent)
    assert done.returncode == 0 and not done.stdout, done.stderr
    text = out.read_text()
    assert subprocess.run(["bash", "-n", out], check=False).returncode == 0
    words = shlex.split(runs(text)[-1])
    assert words[0] == "exec" and words[-3:] == ["-c", str(config), "$@"]
    ours = words[1:-3]
    said = subprocess.run([*ours, "--version"], stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}).stdout
    assert os.path.isabs(ours[0]) and said.startswith("vrm ")
    assert ("--ntasks-per-node=8" if system == "slurm" else "ncpus=8:mpiprocs=8") in text
    assert done.stderr.splitlines()[-2 if system == "pbs" else -1].startswith(
        "  id=$(qsub '" if system == "pbs" else "  for i in 1 2; do sbatch '")
    again = call(f"--{system}", "-N", 8, "-t", "2h", "-c", config, "-o", out)
    assert again.returncode == 2 and "--force replaces it" in again.stderr
    assert call(f"--{system}", "-N", 8, "-t", "2h", "-c", config, "-o", out,
                "--force").returncode == 0


@pytest.mark.parametrize("words, said", [
    (["-N", 0, "-t", "2h"], "not a whole number from 1 up"), (["-N", 2, "-t", "120"], "minutes"),
    (["-N", 2, "-t", "0:00:00"], "`0:00:00` is not a time"), (["-N", 2, "-t", "1:60:00"], "is not a time"),
    (["-N", 2, "-t", "2h", "--account", "a b"], "is not a name"),
    (["-N", 2, "-t", "2h", "--module", "a;b"], "is not a name"),
    (["-N", 2, "-t", "2h", "--mem-per-cpu", "much"], "is not a size"),
    (["-N", 2, "-t", "2h", "--directive", "qos=long"], "is not an option"),
    (["-N", 2, "-t", "2h", "-o", "/nowhere/at/all"], "cannot write"),
])
@pytest.mark.slow
def test_wrong_words_are_refused(words: list[Any], said: str, config: Path) -> None:
    done = call("--slurm", "-c", config, *words)
    assert done.returncode == 2 and said in done.stderr and not done.stdout


@pytest.mark.slow
def test_a_configuration_is_wanted_and_checked(tmp_path: Path, config: Path) -> None:
    done = call("--slurm", "-N", 2, "-t", "2h", cwd=tmp_path)
    assert done.returncode == 2 and "Give -c FILE" in done.stderr
    config.write_text("Nodes: 4\nSockets: 2\nCores: 4\nEmulate: true\nApplications: {Path: bin}\n")
    done = call("--slurm", "-N", 8, "-t", "2h", "-c", config, "--exclusive")
    assert done.returncode == 0 and "ntasks-per-node" not in done.stdout
    assert "Emulate: true" in done.stderr and "Nodes: 4" in done.stderr


@pytest.mark.parametrize("text, seconds", [
    ("2:00:00", 7200), ("02:00:01", 7201), ("1-12:00:00", 129600), ("90m", 5400), ("1d", 86400)])
def test_times(text: str, seconds: int) -> None:
    from vrm.ext.begin.commands.script import duration
    assert duration(text) == seconds


@pytest.mark.parametrize("config, name", [
    ("/x/strip.yaml", "vrm-strip"), ("/my study/vrm.yaml", "vrm-my-study"),
    ("/vrm.yaml", "vrm-run"), ("/x/ü b;c.yaml", "vrm-b-c")])
def test_names_of_batch_jobs(config: str, name: str) -> None:
    from vrm.ext.begin.commands.script import batch_name
    assert batch_name(config) == name


@pytest.mark.parametrize("text, mebibytes", [("1400", 1400), ("1400M", 1400), ("2gb", 2048)])
def test_sizes(text: str, mebibytes: int) -> None:
    from vrm.ext.begin.commands.script import memory
    assert memory(text) == mebibytes


# ------------------------------------------------------------------------------------ the examples

EXAMPLES = {
    "vrm.slurm": ["--slurm", "-N", "4", "-t", "2:00:00", "--exclusive"],
    "vrm.pbs": ["--pbs", "-N", "4", "-t", "2:00:00", "--cores", "8", "--exclusive"]}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_what_the_command_writes(name: str, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "executable", str(ROOT / ".venv/bin/python"))
    monkeypatch.setattr(os, "access", lambda path, mode: str(path).endswith("/.venv/bin/vrm"))
    example = ROOT / "jobs" / name
    words = ["script", *EXAMPLES[name], "-c", "config/strip.yaml", "--here"]
    assert cli.main(words) == 0
    wanted = capsys.readouterr().out.replace("FILE\n", f"jobs/{name}\n", 1)
    assert example.read_text() == wanted


# ------------------------------------------------------------- as PBS would run it, and chains


def test_the_script_for_pbs_runs_where_it_was_submitted(site: Site, tmp_path: Path) -> None:
    """The shell started as PBS does it: in the home directory, with its variables, and in a
    session of its own, whose age is the job's."""
    site.program("tells.x", 'echo "$PBS_WALLTIME in $PWD"; echo heard > "$0.log"\n')
    site.lines("tells.x 1 10 0")
    made = site.run("script", "--pbs", "-N", "1", "-t", "2h", "--cores", "1", "--name", "study")
    assert made.returncode == 0, made.stderr
    (site.root / "nodes").write_text(f"{os.uname().nodename}\n")
    ran = subprocess.run(
        ["bash"], input=made.stdout, text=True, cwd=tmp_path, timeout=60, check=False,
        start_new_session=True,
        env={**site.env, "PYTHONPATH": str(ROOT), "PBS_JOBID": "123.server",
             "PBS_O_WORKDIR": str(site.root), "PBS_NODEFILE": str(site.root / "nodes")})
    said = (site.root / "study-123.out").read_text()
    assert ran.returncode == 0 and "1 completed" in said, said
    assert (site.log / "tells.x.0.o").read_text().endswith(f"7200 in {site.root}\n")



def test_a_finished_run_is_not_repeated_by_the_next_of_a_chain(site: Site) -> None:
    site.program("once.x", "echo ran >> $0.log\n")
    site.lines("once.x 1 10 0")
    assert site.run("--continue").returncode == 0
    done = site.run("--continue")
    assert done.returncode == 0 and "nothing to do: all jobs have ended" in done.stdout
    assert (site.bin / "once.x.log").read_text() == "ran\n"
    assert site.run("--fresh").returncode == 0
    assert (site.bin / "once.x.log").read_text() == "ran\n" * 2


# --------------------------------------------------------------------------- under a real Slurm


def test_a_chain_of_batch_jobs_runs_a_queue_to_its_end(testbed: Testbed, tmp_path: Path) -> None:
    """Three allocations: the first is warned while a job runs, which may finish; the second goes
    on with the job that still waits; for the third there is nothing to do."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, rest in (("first.x", ""), ("waits.x", "while [ ! -e $0.go ]; do sleep 0.02; done"),
                       ("last.x", "")):
        path = programs / name
        path.write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID" >>"$0.$OMPI_COMM_WORLD_RANK"\n{rest}\n')
        path.chmod(0o755)
    (tmp_path / "queue").write_text("first.x 2 10 0\nwaits.x 2 600 0\nlast.x 2 10 1\n")
    config, log = tmp_path / "my.yaml", tmp_path / "log"
    config.write_text(yaml.safe_dump({
        "Applications": {"Path": "bin", "Queue": "queue"}, "Log": "log", "Grace": 1,
        "Launcher": {"AllowRoot": True, "CheckBindings": "ignore"}}))
    vrm = [sys.executable, "-m", "vrm.cli"]
    env = {"PYTHONPATH": str(ROOT)}

    def on_login(*words: object) -> str:
        done = testbed.exec("login", words, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def queued() -> list[str]:
        return on_login("squeue", "-h", "-S", "i", "-o", "%i %T %r").splitlines()

    def ran(program: str) -> list[str]:
        return [path.read_text() for path in sorted(programs.glob(f"{program}.[0-9]"))]

    on_login(*vrm, "script", "--slurm", "-N", 1, "-t", "1:00:00", "--exclusive", "--once",
             "--mem-per-cpu", "50M", "--chain", 3, "-c", config, "-o", "job.sh", "--submit")
    try:
        wait_until(lambda: len(ran("waits.x")) == 2, "both ranks of the second job run")
        jobs = [line.split()[0] for line in queued()]
        assert [line.split(maxsplit=1)[1] for line in queued()] == [
            "RUNNING None", "PENDING Dependency", "PENDING Dependency"]
        wait_until(lambda: "Running 1" in (picture := on_login(*vrm, "top", "-c", config))
                   and "waits.x" in picture, "the second job is shown")
        assert "waits.x" in on_login(*vrm, "-c", config, "-i", "queue")
        on_login("scancel", "--batch", "--signal=USR1", jobs[0])
        first, = tmp_path.glob(f"vrm-my-????-{jobs[0]}.out")
        outputs = [first.with_name(f"{first.name[:len('vrm-my-0000-')]}{job}.out") for job in jobs]
        wait_until(lambda: "starting nothing more" in outputs[0].read_text(), "vrm is warned")
        (programs / "waits.x.go").touch()
        wait_until(lambda: not queued(), "all batch jobs have ended")
    finally:
        on_login("scancel", "--user=root")
        wait_until(lambda: not queued(), "no batch job is left")
    rows = {row.app: (row.status, row.procs) for row in read_jobs(log / "jobs.csv")}
    assert rows == dict.fromkeys(("first.x", "waits.x", "last.x"), ("completed", 2))
    assert ran("first.x") == ran("waits.x") == [f"{jobs[0]}\n"] * 2
    assert ran("last.x") == [f"{jobs[1]}\n"] * 2
    assert "1 job(s) still wait" in outputs[0].read_text()
    assert "continuing the run of 3 job(s)" in outputs[1].read_text()
    assert "nothing to do: all jobs have ended" in outputs[2].read_text()
