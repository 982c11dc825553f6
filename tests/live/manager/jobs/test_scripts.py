"""Jobs that are scripts: kept when they come, run once, on the cores of their first node."""

from __future__ import annotations
from support import warm

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import Site, mpirun_environment, mpiruns, wait_until
from vrm.live.launch.script import ScriptLauncher
from vrm.model.forms.hosts import fold_hosts
from vrm.model.quantities import repeated
from vrm.live.manager.job_environment import environment
from vrm.model import Cluster, RankSlot
from vrm.model.quantities import numbers
from vrm.ext.steps.records import read_steps
from vrm.ext.building.compiling import COMPILERS


def command(site: Site, *words: str, cwd: Any = None) -> subprocess.CompletedProcess[str]:
    return warm.run(["-c", str(site.config_file), *words], env=site.env, timeout=60, cwd=cwd)


def script(path: Path, text: str, mode: int = 0o644) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(mode)
    return path


def output(site: Site, job_id: int) -> str:
    return next(site.log.glob(f"*.{job_id}.o")).read_text()


@pytest.fixture
def anywhere(site: Site) -> Site:
    """A site of two emulated nodes, whose jobs may be any file."""
    site.config(Nodes=2, Sockets=1, Cores=4, Emulate=True,
                Applications={"Path": str(site.bin), "Queue": str(site.queue), "Any": True})
    return site


def test_a_script_runs_once_and_says_how_it_ended(anywhere: Site) -> None:
    site = anywhere
    script(site.bin / "relax.sh", 'echo "$0 got $* in $PWD"\n'
           'echo "$VRM_JOB_ID $VRM_NTASKS $VRM_CPUS_PER_TASK $VRM_NNODES $VRM_NODELIST '
           '$VRM_TASKS_PER_NODE ${VRM_ARRAY_INDEX-none} $COLOUR"\n'
           'echo "${SLURM_ARRAY_TASK_ID-none} $SLURM_JOB_ID $SLURM_TASKS_PER_NODE $SLURM_CPUS_PER_TASK"\n')
    script(site.root / "three.sh", "exit 3\n")
    script(site.root / "own", "echo a program by its path\n", 0o755)
    site.lines("relax.sh 6 60 script=1 env=COLOUR=red args='-n 3'",
               "relax.sh 2 60 script=1 cores=2 array=4-5",
               f"{site.root}/three.sh 1 60 script=1",
               "relax.sh 1 60 script=1 after=3",
               "./own 1 60")
    done = site.run("--once")
    assert done.returncode == 1, done.stdout
    first = output(site, 0).splitlines()
    assert first[0].endswith(f"got -n 3 in {site.queue.parent}") and len(first) == 3
    assert first[1] == "0 6 1 2 n0,n1 4,2 none red"
    assert [output(site, job_id).splitlines()[1] for job_id in (1, 2)] == [
        "1 2 2 1 n0 2 4 ", "2 2 2 1 n1 2 5 "]
    assert [output(site, job_id).splitlines()[2] for job_id in (0, 1, 2)] == [
        "none 0 4,2 1", "4 1 2 2", "5 2 2 2"]
    rows = site.rows()
    assert rows[3].status == "failed" and rows[3].exit_code == 3
    assert rows[4].status == "cancelled"  # it depends on a script that failed
    assert "a program by its path" in output(site, 5)
    assert rows[0].script and rows[3].file == str(site.root / "three.sh")
    assert rows[5].app == "own" and not rows[5].script
    steps = read_steps(site.log / "steps.csv")
    assert sorted(steps) == [0, 1, 2, 3] and all(len(found) == 1 for found in steps.values())
    batch, = steps[0]
    assert (batch.step, batch.state, batch.exit_code, batch.cores, batch.nodes) == (
        "batch", "completed", 0, 6, "n0 n1")
    assert (steps[3][0].state, steps[3][0].exit_code) == ("failed", 3)
    assert batch.start == pytest.approx(rows[0].start, abs=0.01)


def test_what_runs_is_the_script_as_it_was(anywhere: Site) -> None:
    site = anywhere
    there = script(site.root / "later.sh", "echo first\n")
    manager = site.start("--wait")
    wait_until(lambda: "waiting for lines" in site.said(manager), "it waits")
    held = command(site, "submit", "--script", "./later.sh", "1", "60", "--hold", cwd=site.root)
    assert held.returncode == 0, held.stderr
    script(there, "echo second\n")
    assert command(site, "submit", str(there), "1", "60", "--script", "--hold").returncode == 0
    there.unlink()
    manager.send_signal(signal.SIGKILL)
    manager.wait()
    again = site.start("--wait")
    wait_until(lambda: command(site, "release", "all").returncode == 0, "they are released")
    wait_until(lambda: len(site.rows()) == 2, "both have ended")
    assert [output(site, job_id) for job_id in (0, 1)] == ["first\n", "second\n"]
    kept = site.log / "scripts"
    assert all(path.stat().st_mode & 0o077 == 0 for path in [kept, *kept.iterdir()])
    assert len(list(kept.iterdir())) == 2
    assert command(site, "requeue", "0").returncode == 0
    wait_until(lambda: output(site, 0) == "first\n" and len(site.rows()) == 2
               and not site.running(), "it has run again")
    again.send_signal(signal.SIGTERM)
    site.finish(again)


def test_a_script_that_is_ended_leaves_nothing(anywhere: Site) -> None:
    site = anywhere
    script(site.bin / "long.sh", "sleep 600 &\necho begun\nwait\n")
    site.lines("long.sh 2 60 script=1", end=False)
    manager = site.start()
    wait_until(lambda: site.running() and "begun" in output(site, 0), "it runs")
    state = json.loads(command(site, "queue", "--json").stdout)
    assert state["jobs"][0]["script"] is True
    assert command(site, "cancel", "0").returncode == 0
    wait_until(lambda: 0 in site.rows(), "it has ended")
    assert site.rows()[0].status == "cancelled"
    manager.send_signal(signal.SIGTERM)
    site.finish(manager)
    site.nothing_left()


def test_what_is_no_script_is_refused_with_the_reason(anywhere: Site) -> None:
    site = anywhere
    for name, text in {"plain.sh": "echo\n", "dos.sh": "#!/bin/sh\r\necho\r\n", "empty.sh": "",
                       "long.sh": "#!" + "x" * (4 << 20)}.items():
        (site.bin / name).write_text(text, newline="")
    os.mkfifo(site.bin / "pipe.sh")
    script(site.bin / "others.sh", "echo\n", 0o666)
    wrong = {"plain.sh": "is not a script: its first line must name its interpreter",
             "dos.sh": "has DOS line ends", "empty.sh": "is not a script", "long.sh": "is longer than",
             "pipe.sh": "is not a file", "none.sh": "does not exist", "others.sh": "may be written by everybody"}
    site.lines(*(f"{name} 1 60 script=1" for name in wrong))
    done = site.run("--once")
    for job_id, said in enumerate(wrong.values()):
        assert site.rows()[job_id].status == "refused"
        assert said in site.rows()[job_id].reason, (said, site.rows()[job_id].reason)
    assert done.returncode == 1 and not list((site.log / "scripts").iterdir())


def test_a_path_needs_the_configurations_word(site: Site) -> None:
    script(site.root / "own", "echo\n", 0o755)
    site.config(Nodes=1, Cores=2, Sockets=1, Emulate=True)
    site.lines("./own 1 60", f"own 1 60 0 file={site.root}/own")
    site.run("--once")
    for row in site.rows().values():
        assert row.status == "refused" and "write Applications: {Any: true}" in row.reason


def test_variables_of_a_batch_system_are_not_for_scripts() -> None:
    nodes = Cluster.regular(2, 1, 2).nodes
    base = {"SLURM_JOB_ID": "7", "PBS_NODEFILE": "/x", "HOME": "/home/user", "NSLOTS": "3"}
    launcher = ScriptLauncher(base, {"SLURM_CPU_BIND": "none"}, {}, emulated=True)
    slots = [RankSlot(rank, rank // 2, 0, (rank % 2,)) for rank in range(3)]
    launch = launcher.command(3, "/x/run.sh", slots, nodes, "/r/run.sh.3.rf", ("a b",), {"PBS_O_MINE": "1"})
    env: dict[str, str] = dict(launch.env)
    assert launch.argv == ("/x/run.sh", "a b") and env["OMP_NUM_THREADS"] == "2"
    assert {name for name in env if name.startswith(("PBS", "NSLOTS"))} == {"PBS_O_MINE"}
    assert {name: env[name] for name in (
        "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE",
        "SLURM_JOB_CPUS_PER_NODE", "SLURM_CPUS_ON_NODE")} == {
        "SLURM_JOB_ID": "3", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_NNODES": "2", "SLURM_NTASKS": "3",
        "SLURM_TASKS_PER_NODE": "2,1", "SLURM_JOB_CPUS_PER_NODE": "2,1", "SLURM_CPUS_ON_NODE": "2"}
    assert env["VRM_STEPS"] == "/r/run.sh.3.steps"
    assert [path.name for path in launch.files] == ["nodes", "cores"]
    assert (env["VRM_NTASKS"], env["VRM_TASKS_PER_NODE"]) == ("3", "2,1")


def test_an_exclusive_script_has_all_cores_of_its_nodes() -> None:
    nodes = Cluster.regular(2, 2, 2).nodes
    slots = [RankSlot(rank, rank // 2, 0, (rank % 2,)) for rank in range(3)]
    launch = ScriptLauncher({}, {}, {}, emulated=True).command(3, "/x/run.sh", slots, nodes, "/r/run.sh.3.rf", alone=True)
    assert [launch.env[name] for name in (
        "SLURM_NTASKS", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_JOB_CPUS_PER_NODE", "SLURM_CPUS_ON_NODE",
        "OMP_NUM_THREADS", "VRM_NTASKS")] == ["3", "2,1", "1", "4(x2)", "4", "2", "3"]


@pytest.mark.mpi
@pytest.mark.parametrize("mpirun", mpiruns())
def test_an_mpirun_in_a_script_stays_on_the_cores_of_the_job(site: Site, mpirun: str) -> None:
    """Two at the same time, each with a core of its own; an exclusive one has both."""
    mpirun = "mpirun" if mpirun == "auto" else mpirun
    script(site.bin / "two.sh",
           f"{mpirun} --oversubscribe -n 2 grep Cpus_allowed_list /proc/self/status "
           ">ranks.$VRM_JOB_ID\ngrep Cpus_allowed_list /proc/self/status\n")
    site.config(Nodes=1, Sockets=1, Cores=2, Allocation={"Policy": "pack"},
                Launcher={"Kind": "direct", "Environment": mpirun_environment()})
    site.lines("two.sh 1 60 script=1", "two.sh 1 60 script=1", "two.sh 1 60 1 script=1")
    done = site.run("--once")
    assert done.returncode == 0, done.stdout + "".join(
        path.read_text() for path in site.log.glob("*.e"))
    seen = []
    for job_id in (0, 1):
        own = output(site, job_id).split()[1:]
        ranks = (site.queue.parent / f"ranks.{job_id}").read_text().split()[1::2]
        assert ranks == own * 2, mpirun
        seen += own
    assert len(set(seen)) == 2
    assert set(numbers(output(site, 2).split()[1])) == {cpu for text in seen for cpu in numbers(text)}
    rows = site.rows()
    assert rows[2].start >= max(rows[0].end, rows[1].end)


def test_what_slurm_says_of_a_job_stays_where_it_says_the_same_of_the_batch_job() -> None:
    launch = {"SLURM_NNODES": "2", "LANG": "C", "MINE": "1", "VRM_RUN": "r"}
    assert environment(launch, {}, {}, {"SLURM_NNODES": "2", "LANG": "C", "VRM_RUN": "r"}) == {
        "SLURM_NNODES": "2", "MINE": "1", "VRM_RUN": "r"}


def test_names_and_numbers_as_slurm_folds_them() -> None:
    assert [fold_hosts(names.split()) for names in (
        "n1", "n0 n1 n2 n7", "n08 n09 n10", "a b1 b2 c5", "n9 n10")] == [
        "n1", "n[0-2,7]", "n[08-10]", "a,b[1-2],c5", "n9,n10"]
    assert [repeated(numbers) for numbers in ((4,), (4, 4, 2), (1, 2, 2))] == ["4", "4(x2),2", "1,2(x2)"]


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("mpirun", mpiruns())
def test_steps_and_mpirun_in_a_script(site: Site, mpirun: str) -> None:
    """Through the whole program: steps side by side, MPI programs among them, each on its own cores;
    mpirun next to them; what is recorded; and that nothing of it stays."""
    script(site.bin / "steps.sh", """
        set -e
        show='echo "$SLURM_JOB_ID $SLURM_PROCID $(grep Cpus_allowed_list /proc/self/status)"'
        srun -n 2 --mpi=none sh -c "$show"
        srun -n 2 -l sh -c "$show" >mpi.out
        srun -n 1 sh -c "$show; touch one; while ! [ -e two ]; do sleep 0.02; done" >one.out &
        srun -n 1 sh -c "$show; touch two; while ! [ -e one ]; do sleep 0.02; done" >two.out &
        wait
        mpirun -n 2 sh -c 'grep Cpus_allowed_list /proc/self/status' >mpirun.out
        srun -n 2 sh -c 'exit 3' || echo "ended $?"
        first=$(awk '/Cpus_allowed_list/ { split($2, at, "[-,]"); print at[1] }' /proc/self/status)
        printf '0 sh -c "%s"\n* sh -c "%s"\n' 'echo first $MARK' 'echo other %t $MARK' >programs
        MARK=here srun -n 3 -O --multi-prog programs
        srun -n 2 --cpu-bind=map_cpu:$first grep Cpus_allowed_list /proc/self/status >map.out
        echo "$SLURM_JOB_NAME $SLURM_SUBMIT_DIR $SLURM_NTASKS"
        """)
    config: dict[str, Any] = {"Mpirun": mpirun} if mpirun != "auto" else {}
    path = f"{Path(mpirun).parent}:" if "/" in mpirun else ""
    site.config(Nodes=1, Sockets=1, Cores=2, Allocation={"Policy": "pack"},
                Launcher={**config, "Environment": {**mpirun_environment(),
                                                    "PATH": path + os.environ["PATH"]}})
    site.lines("steps.sh 2 60 script=1 name=relax")
    done = site.run("--once")
    errors = "".join(path.read_text() for path in site.log.glob("*.e"))
    assert done.returncode == 0, done.stdout + errors
    lines = output(site, 0).splitlines()
    assert [lines[-5], *sorted(lines[-4:])] == ["ended 3", "first here", "other 1 here", "other 2 here", f"relax {site.queue.parent} 2"], lines + [errors]
    ranks = [line.split() for line in lines[:2]]
    assert sorted(rank[1] for rank in ranks) == ["0", "1"] and ranks[0][0] == "0"
    cores = {rank[-1] for rank in ranks}
    assert len(cores) == 2 and all(core.isdigit() for core in cores)

    def words(name: str) -> list[list[str]]:
        return [line.split() for line in (site.queue.parent / name).read_text().splitlines()]

    labelled = words("mpi.out")
    assert sorted(line[0] for line in labelled) == ["0:", "1:"]
    assert all(line[0] == f"{line[2]}:" for line in labelled) and {line[-1] for line in labelled} == cores
    assert {words("one.out")[0][-1], words("two.out")[0][-1]} == cores
    both = {",".join(sorted(cores)), "-".join(sorted(cores))}
    bound = [line[-1] for line in words("map.out")]
    assert len(bound) == 2 and bound[0] == bound[1] and bound[0] in cores
    assert len(words("mpirun.out")) == 2 and {line[-1] for line in words("mpirun.out")} <= both
    steps = read_steps(site.log / "steps.csv")[0]
    assert [(step.step, step.state, step.exit_code) for step in steps if step.step not in "23"] == [
        ("0", "completed", 0), ("1", "completed", 0), ("4", "failed", 3), ("5", "completed", 0), ("6", "completed", 0),
        ("batch", "completed", 0)]
    assert not list((site.log / "rankfiles").glob("*.steps"))
    site.nothing_left()


def test_steps_go_on_while_the_manager_is_dead(anywhere: Site) -> None:
    site = anywhere
    script(site.bin / "on.sh", f"""cd {site.root}
        srun -n 1 sh -c ': >begun; until [ -e dead ]; do sleep 0.02; done'
        srun -n 1 sh -c ': >second; until [ -e again ]; do sleep 0.02; done; echo well'
        """)
    site.lines("on.sh 2 60 script=1")
    manager = site.start()
    wait_until(lambda: (site.root / "begun").exists(), "the first step runs")
    manager.kill()
    manager.wait()
    (site.root / "dead").touch()
    wait_until(lambda: (site.root / "second").exists(), "the second one runs, too")
    again = site.start()
    wait_until(lambda: site.said(again).strip() != "", "another manager is there")
    (site.root / "again").touch()
    site.finish(again)
    assert site.statuses() == {0: "completed"} and output(site, 0) == "well\n"
    assert [(step.step, step.state) for step in read_steps(site.log / "steps.csv")[0]] == [
        ("0", "completed"), ("1", "completed"), ("batch", "completed")]


@pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C compiler")
def test_steps_are_started_by_a_server_which_ends_with_the_script(anywhere: Site) -> None:
    """From the first script on that needs it: the program is built next to the run, and used."""
    site = anywhere
    script(site.bin / "served.sh", """
        until [ -S "$VRM_STEPS/socket" ] && cmp -s "$VRM_DIRECTORY/bin/srun" "$VRM_DIRECTORY/bin/.vrm-client"; do
            sleep 0.02
        done
        srun -n 1 sh -c 'ps -o args= -p $(ps -o ppid= -p $PPID)'
        srun -n 2 sh -c 'exit 3'
        """)
    site.env["XDG_CACHE_HOME"] = str(site.root / "cache")
    site.lines("served.sh 2 60 script=1")
    done = site.run("--once")
    assert done.returncode == 1 and "exit 3" in done.stdout, done.stdout
    assert "supervisor" in output(site, 0)
    site.nothing_left()


def test_steps_share_out_the_gpus_of_a_script(site: Site) -> None:
    (site.root / "gpus").mkdir()
    for index in range(3):
        (site.root / "gpus" / f"nvidia{index}").write_text(f"uuid: GPU-{index}\n")
    site.env["VRM_DEVICES"] = str(site.root / "gpus")
    site.config(Nodes=1, Sockets=1, Cores=2, Allocation={"Policy": "pack"}, Launcher={"Kind": "direct"})
    script(site.bin / "share.sh", f"""cd {site.root}
        for i in 0 1; do
            srun -n 1 --gpus=1 sh -c "echo \\$CUDA_VISIBLE_DEVICES; : >at.$i; until [ -e at.0 ] && [ -e at.1 ]; do :; done" &
        done
        wait
        srun -n 2 --gpus-per-task=1 sh -c 'echo task $SLURM_PROCID $CUDA_VISIBLE_DEVICES'
        srun -n 1 sh -c 'echo all $CUDA_VISIBLE_DEVICES'
        """)
    site.lines("share.sh 2 60 script=1 gpus_per_task=1")
    done = site.run("--once")
    assert done.returncode == 0, done.stdout
    lines = output(site, 0).splitlines()
    assert sorted(lines[:2]) == ["GPU-0", "GPU-1"]
    assert sorted(lines[2:]) == ["all GPU-0,GPU-1", "task 0 GPU-0", "task 1 GPU-1"]


def test_what_is_checked_before_the_run(anywhere: Site) -> None:
    site = anywhere
    script(site.root / "own.sh", "echo\n")
    script(site.bin / "in.sh", "echo\n")
    (site.bin / "plain").write_text("echo\n")
    site.lines("./own.sh 1 60 script=1", "in.sh 1 60 script=1", "./own.sh 1 60", "plain 1 60 script=1",
               "./gone 1 60", end=True)
    said = command(site, "check").stdout
    assert f"{site.root}/own.sh is not executable" in said and "is not a script" in said
    assert "gone does not exist; is the path right?" in said and "3 of 5 lines can never run" in said
