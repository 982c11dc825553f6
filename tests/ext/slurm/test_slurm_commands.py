"""Slurm's commands on a real manager: jobs come, run, and are known, at once and after everything."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import Site, wait_until
from vrm.ext.slurm.calls import build, client, wire
from vrm.ext.slurm.calls.wire import Call
from vrm.results.jobs import read_jobs
from vrm.run import command_files
from vrm.run.journal import files as journals
from vrm.run.rundir import RunDirectory, write_json
from vrm.system import bash_env
from vrm.ext.building import compiling
from support.slurm_cluster import Cluster, commands  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(site: Site, commands: Path) -> Cluster:
    return Cluster(site, commands)


def test_an_exclusive_job_has_all_cores_of_its_node(cluster: Cluster) -> None:
    """As Slurm counts, while it runs, when it has ended, by a later manager or none; its tasks have what they want."""
    cluster.start()
    wants = "while [ ! -e go ]; do sleep 0.01; done; echo $SLURM_JOB_CPUS_PER_NODE $SLURM_NTASKS"
    alone, plain = (cluster.sbatch("-n1", "-o", "%j", *more, "--wrap", wants) for more in (["--exclusive"], []))

    def known() -> list[str]:
        return [line.rstrip("|") for job in (alone, plain) for line in cluster.said(
            "sacct", "-nPX", "-j", str(job), "-o", "reqcpus,alloccpus").split()]

    wait_until(lambda: cluster.state(alone) == "RUNNING", "it runs")
    assert sorted(cluster.said("squeue", "-h", "-o", "%i %C").splitlines()) == [f"{alone} 2", f"{plain} 1"]
    shown = cluster.said("scontrol", "show", "job", str(alone))
    assert "NumCPUs=2 NumTasks=1" in shown, shown
    (cluster.site.root / "go").touch()
    cluster.ended(alone, plain)
    assert (cluster.site.root / str(alone)).read_text() == "2 1\n"
    assert known() == ["1|2", "1|1"]
    found = cluster.said("sacct", "-nP", "-j", str(alone), "-o", "jobid,ncpus")
    assert found.split() == [f"{alone}|2", f"{alone}.batch|2"]
    cluster.stop()
    assert known() == ["1|2", "1|1"]
    cluster.start()
    assert known() == ["1|2", "1|1"]


def test_a_session(cluster: Cluster) -> None:
    """What a tool does in its day, one manager."""
    root, log = cluster.site.root, cluster.site.log
    cluster.start()
    assert stat.S_IMODE((log / "socket").stat().st_mode) == 0o600
    (root / "job.sh").write_text("#!/bin/sh\n#SBATCH -J hello -o out.%x.%j\necho \"$1 $FOO $SLURM_JOB_ID\"; echo oops >&2\n"
                                 "while [ -e wait ]; do sleep 0.01; done\nexit $2\n")
    (root / "wait").touch()
    first = cluster.sbatch("-n", "2", "job.sh", "a b", "0", FOO="bar")
    (root / "job.sh").write_text("#!/bin/sh\nexit 9\n")  # what was submitted is what runs
    assert first == 1
    # It is known at once, and a second that waits for room, too.
    assert cluster.said("squeue", "-h", "-j", "1", "-o", "%i %j %T").split()[:2] == ["1", "hello"]
    second = cluster.sbatch("-t", "1", "-d", "afterok:1", "--wrap", "exit 3")
    assert cluster.said("squeue", "-h", "-j", str(second), "-o", "%t %r %l") == "PD Dependency 1:00\n"
    third = cluster.sbatch("-d", f"afterok:{second}", "--wrap", "true")
    wait_until(lambda: cluster.state(1) == "RUNNING", "it runs")
    assert "1.batch" in cluster.said("sacct", "-n", "-j", "1", "-o", "jobid")
    assert cluster.call("scontrol", "hold", "1").returncode == 1
    (root / "wait").unlink()
    cluster.ended(first, second, third)
    assert [cluster.state(each).split()[0] for each in (first, second, third)] == ["COMPLETED", "FAILED", "CANCELLED"]
    assert (root / "out.hello.1").read_text() == "a b bar 1\noops\n"
    assert cluster.said("sacct", "-nXP", "-j", "2", "-o", "exitcode") == "3:0\n"

    # Standard input, variables of options, errors apart, arrays of which two run at a time, append, input.
    (root / "words").write_text("given\n")
    optional = ("CPUS_PER_TASK", "JOB_ACCOUNT", "MEM_PER_NODE", "NTASKS_PER_NODE", "MEM_PER_CPU")
    ids = [cluster.sbatch("-o", "o.%j", "-e", "e.%j", "-i", "words", data="#!/bin/sh\ncat; echo no >&2\n"),
           cluster.sbatch("-o", "kept", "--open-mode=append", "--wrap", "echo one"),
           *(cluster.sbatch("-o", "said.%j", *said, "--wrap", f"echo ${{SLURM_{'-none} ${SLURM_'.join(optional)}-none}}")
             for said in ([], ["-c1", "-A", "proj"], ["-c2", "--mem=1G", "--tasks-per-node", "1"], ["--mem-per-cpu", "64"]))]
    cluster.ended(*ids)
    assert [(root / f"said.{each}").read_text() for each in ids[2:]] == [
        "none none none none none\n", "1 proj none none none\n", "2 none 1024 1 none\n", "none none none none 64\n"]
    again = cluster.sbatch("-o", "kept", "--open-mode=append", "--wrap", "echo two")
    array = cluster.sbatch("-a", "2-8:2%2", "-n1", "--wrap", "echo $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_MAX "
                           "$SLURM_ARRAY_JOB_ID")
    assert len(cluster.said("squeue", "-h", "-r", "-j", str(array), "-t", "all").splitlines()) == 4
    record, = [each for each in journals.read(cluster.site.log / "journal") if each.get("id") == array
               and each["event"] == "job"]  # of the whole array: a crash leaves all of it or nothing
    assert record["own"] == ["", "", f"any:{array}", f"any:{array + 1}"]
    cluster.ended(again, array)
    assert (root / f"o.{ids[0]}").read_text() == "given\n" and (root / f"e.{ids[0]}").read_text() == "no\n"
    assert (root / "kept").read_text() == "one\ntwo\n"
    assert (root / f"slurm-{array}_4.out").read_text() == f"4 of 8 {array}\n"
    assert cluster.said("sacct", "-nX", "-j", f"{array}_[4-6]", "-o", "jobid%8").split() == [f"{array}_4", f"{array}_6"]

    # Nodes by their names: of an option, of a file, of a script, and for a step of a job of its own.
    here = cluster.said("sinfo", "-h", "-N", "-o", "%N").split()[0]
    (root / "nodes").write_text(f"# mine\n{here}\n")
    named = cluster.sbatch("-H", "-w", "./nodes", data="#!/bin/sh\n#SBATCH -n1\ntrue\n")
    assert f"ReqNodeList={here} ExcNodeList=(null)" in cluster.said("scontrol", "show", "job", str(named))
    cluster.said("scontrol", "release", str(named))
    assert cluster.said("srun", "-Q", "-w", here, "echo", "named") == "named\n"
    cluster.ended(named)
    for words in (["-w", "nosuch"], ["-x", "nosuch"], ["-x", here]):
        done = cluster.call("sbatch", *words, "--wrap", "true")
        assert done.returncode == 1 and ("there is no node nosuch" if "nosuch" in words else "exclude leaves none"
                                         ) in done.stderr, done

    # --wait gives the exit status; a limit is kept; a signal comes before it.
    assert cluster.call("sbatch", "--wait", "--wrap", "exit 7").returncode == 7
    limited = cluster.sbatch("-t", "0:1", "--wrap", "sleep 100")
    warned = cluster.sbatch("-t", "0:30", "--signal=B:USR1@29", "-o", "warned", data="#!/bin/sh\n"
                            "trap 'echo warned; exit 0' USR1\nwhile :; do sleep 0.05; done\n")
    cluster.ended(limited, warned)
    assert cluster.state(limited) == "TIMEOUT" and (root / "warned").read_text() == "warned\n"

    # A client makes the directory of the output when it knows the id.
    late = [cluster.sbatch("-n1", "-o", "d/%j/out", "--wrap", "echo there") for _ in range(2)]
    for each in late:
        (root / "d" / str(each)).mkdir(parents=True)
    cluster.ended(*late)
    assert [(root / "d" / str(each) / "out").read_text() for each in late] == ["there\n"] * 2

    # Hold, release, limits and priorities, cancel, requeue.
    held = cluster.sbatch("-H", "--wrap", "echo x >> ran; sleep 60", "-n1")
    assert cluster.said("squeue", "-h", "-j", str(held), "-o", "%t %r") == "PD JobHeldUser\n"
    cluster.said("scontrol", "update", f"JobId={held}", "TimeLimit=2:00:00", "Priority=5")
    assert cluster.said("squeue", "-h", "-j", str(held), "-o", "%l") == "2:00:00\n"
    cluster.said("scontrol", "release", str(held))
    wait_until(lambda: (root / "ran").exists(), "it runs")
    cluster.said("scontrol", "requeue", str(held))
    wait_until(lambda: (root / "ran").read_text() == "x\nx\n", "it runs again")
    cluster.said("scontrol", "update", f"JobId={held}", "TimeLimit=90")
    assert cluster.said("squeue", "-h", "-j", str(held), "-o", "%l %T") == "1:30:00 RUNNING\n"
    cluster.said("scancel", str(held))
    cluster.ended(held)
    assert cluster.state(held) == f"CANCELLED by {os.geteuid()}"

    # What is wrong is said, and nothing has come of it.
    before = cluster.said("squeue", "-h", "-t", "all")
    for words in (["sbatch", "--nosuch", "x"], ["sbatch", "gone.sh"], ["sbatch", "-n", "99", "--wrap", "true"],
                  ["squeue", "-j", "999"], ["scancel", "999"], ["scontrol", "show", "job", "999"], ["sbatch", "out.hello.1"]):
        done = cluster.call(*words)
        assert done.returncode == 1 and done.stderr and not done.stdout, words
    assert [line for line in cluster.said("squeue", "-h", "-t", "all").splitlines()
            if line not in before.splitlines()] == []

    # In Python, and by files as from another node: the same.
    script = root / "python"
    script.mkdir()
    for name in ("sbatch", "squeue", "sinfo"):
        (script / name).write_text(build.script(name))
        (script / name).chmod(0o755)
    cluster.commands, kept = script, cluster.commands
    by_python = cluster.sbatch("--wrap", "echo in python")
    (log / "socket").rename(log / "elsewhere")
    by_file = cluster.sbatch("-o", "filed", data="#!/bin/sh\necho by file\n")
    assert by_file == by_python + 1 and "vrm*" in cluster.said("sinfo")
    (log / "elsewhere").rename(log / "socket")
    cluster.commands = kept
    cluster.ended(by_python, by_file)
    assert (root / "filed").read_text() == "by file\n"

    # The end: the run is over, and sacct still knows; squeue does not pretend to know.
    cluster.stop()
    assert not (log / "socket").exists()
    assert cluster.state(by_file) == "COMPLETED"
    assert cluster.said("scontrol", "show", "hostnames", "n[1-2]") == "n1\nn2\n"
    done = cluster.call("squeue", "-j", "1")
    assert done.returncode == 1 and "Unable to contact slurm controller" in done.stderr


def test_ids_never_come_again_and_a_queue_file_counts_its_lines(cluster: Cluster) -> None:
    site = cluster.site
    site.program("true.x", "exit 0\n")
    site.lines("true.x 1 9 0", "true.x 1 9 0 after=0", end=False)
    cluster.start()
    wait_until(lambda: len(site.rows()) == 2, "the lines ran")
    assert sorted(site.rows()) == [0, 1]  # nobody has used Slurm's commands yet
    assert cluster.sbatch("--wrap", "true") == 2
    site.append("true.x 1 9 0 after=2\ntrue.x 1 9 0\n")  # the third line depends on itself
    wait_until(lambda: len(site.rows()) == 5, "all ran")
    assert site.rows()[3].status == "refused" and site.rows()[4].status == "completed"
    cluster.stop()
    site.lines("true.x 1 9 0", "true.x 1 9 0 after=0", end=False)
    cluster.start("--fresh")
    wait_until(lambda: len(site.rows()) == 2, "the lines ran again")
    assert site.statuses() == {1001: "completed", 1002: "completed"}
    assert cluster.sbatch("--wrap", "true") == 1003
    wait_until(lambda: len(site.rows()) == 3, "it ran")
    site.append("true.x 1 9 0 after=1\n")
    wait_until(lambda: len(site.rows()) == 4, "the third line ran")
    assert site.rows()[1004].status == "completed" and site.rows()[1004].after == "1002"


@pytest.mark.parametrize("flag", ["SIGKILL"])
def test_what_was_accepted_outlives_a_killed_manager(cluster: Cluster, flag: str) -> None:
    """The id is printed, so the job is on disk; nobody says that it has ended; the next manager runs
    it once, with the environment, the file names and the limit that were asked for."""
    site, root = cluster.site, cluster.site.root
    cluster.start()
    (root / "wait").touch()
    runs = cluster.sbatch("-n2", "-o", "long", "--wrap", "while [ -e wait ]; do sleep 0.01; done; echo $FOO", FOO="kept")
    waits = cluster.sbatch("-J", "a/b", "-t", "7", "-o", "w.%j", "--comment", "said", data="#!/bin/sh\necho $FOO >> ran\n",
                           FOO="bar")
    wait_until(lambda: (root / "long").exists(), "it runs")
    cluster.said("scontrol", "update", f"JobId={waits}", "TimeLimit=8")
    os.kill(cluster.process.pid, getattr(signal, flag))
    cluster.process.wait(20)
    last = [each for each in journals.read(site.log / "journal") if each["event"] == "job"][-1]
    assert last["id"] == waits
    done = cluster.call("squeue", "-j", str(waits))
    assert done.returncode == 1 and not done.stdout, "no manager: it must not look as if it had ended"
    assert cluster.state(waits) == "PENDING"
    shutil.rmtree(root / "sub", ignore_errors=True)
    cluster.start()
    assert cluster.said("squeue", "-h", "-j", str(waits), "-o", "%j %l %k %T") == "a/b 8:00 said PENDING\n"
    (root / "wait").unlink()
    cluster.ended(runs, waits)
    assert (cluster.state(runs), cluster.state(waits)) == ("COMPLETED", "COMPLETED")
    assert (root / "ran").read_text() == "bar\n" and (root / "long").read_text() == "kept\n"


def test_a_limit_beyond_the_allocation_is_cut_and_a_job_without_one_starts(cluster: Cluster) -> None:
    site = cluster.site
    site.config(Launcher={"Kind": "direct"}, End={"At": 600, "Margin": 5}, Slurm={"DefaultTime": "2h"})
    cluster.start()
    ids = [cluster.sbatch("-t", "1-0", "--wrap", "true"), cluster.sbatch("--wrap", "true")]
    late = cluster.sbatch("-H", "-t", "9", "--wrap", "true")
    cluster.ended(*ids)
    assert [cluster.state(each) for each in ids] == ["COMPLETED"] * 2
    limit = cluster.said("sacct", "-nX", "-j", str(ids[0]), "-o", "timelimit").strip()
    assert "00:09:00" < limit <= "00:10:00"
    assert cluster.said("squeue", "-h", "-j", str(late), "-o", "%l") == "9:00\n"
    assert "its limit of 1-0 is cut to" in cluster.stop()


def test_strangers_and_nonsense_at_the_socket(cluster: Cluster) -> None:
    """Nonsense is answered and harms nobody; clients that go, or say nothing, leave nothing."""
    import socket
    cluster.start()
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(str(cluster.site.log / "socket"))
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"VRM1\xff\xff\xff\xff", b"VRM1\x04\0\0\0abcd", b"VRM1\x01\0\0\0\0"):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(str(cluster.site.log / "socket"))
            client.sendall(data)
            answer = b""
            while part := client.recv(4096):
                answer += part
            assert b"error" in answer and answer.endswith(b"X\x01\0\0\x001")
    gone = subprocess.Popen([str(cluster.commands / "sbatch"), "--wait", "--wrap", "sleep 0.2"], env=cluster.env,
                            cwd=cluster.site.root, stdout=subprocess.PIPE, text=True)
    assert gone.stdout is not None
    assert gone.stdout.readline() == "Submitted batch job 1\n"
    gone.kill()
    gone.wait()
    gone.stdout.close()
    big = "#!/bin/sh\n" + "# " + "x" * (3 << 20) + "\ntrue\n"
    job = cluster.sbatch(data=big)
    cluster.ended(1, job)
    assert cluster.state(job) == "COMPLETED"
    silent.close()


def test_the_commands_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert build.link(tmp_path / "built") == build.ready() == any(map(shutil.which, compiling.COMPILERS))
    monkeypatch.setattr(compiling, "COMPILERS", ("no-such-compiler",))
    monkeypatch.delenv("CC", raising=False)
    assert build.link(tmp_path / "kept") == build.ready()  # compiled once for all runs
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    assert not build.link(tmp_path / "plain")
    for place in ("built", "plain"):
        done = subprocess.run([str(tmp_path / place / "squeue")], capture_output=True, text=True, timeout=60, check=False,
                              env={"PATH": os.environ["PATH"]})
        assert done.returncode == 1 and "VRM_DIRECTORY" in done.stderr and not done.stdout
        assert sorted(path.name for path in (tmp_path / place).iterdir() if path.name[0] != ".") == sorted(
            build.everything().answers.keys() - build.LAUNCHERS | {bash_env.FILE})


@pytest.mark.skipif(not any(map(shutil.which, compiling.COMPILERS)), reason="needs a C compiler")
def test_a_program_that_others_could_have_put_there_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert build.link(tmp_path / "own") and build.ready()
    kept, = (tmp_path / "cache" / "vrm").glob("client-*")
    kept.write_text("#!/bin/sh\necho planted\n")
    kept.parent.chmod(0o777)
    assert not build.ready() and build.link(tmp_path / "built")
    assert b"planted" not in (tmp_path / "built" / "squeue").read_bytes()


def test_seff_with_and_without_a_manager(cluster: Cluster) -> None:
    cluster.start()
    job = cluster.sbatch("-n2", "--mem=100M", "--wrap", "exit 3")
    cluster.ended(job)
    shown = cluster.said("seff", str(job)).splitlines()
    assert shown[:2] == [f"Job ID: {job}", "Cluster: vrm"] and shown[3:6] == [
        "State: FAILED (exit code 3)", "Nodes: 1", "Cores per node: 2"]
    assert shown[6:9] == ["CPU Utilized: 00:00:00", shown[7], "Job Wall-clock time: 00:00:00"]
    assert shown[7].endswith("% of 00:00:00 core-walltime") and shown[-1].endswith("% of 100.00 MB (100.00 MB/node)")
    assert cluster.call("seff", "99").stdout == "Job not found.\n"
    cluster.stop()
    assert cluster.said("seff", str(job)).splitlines() == shown


def test_vrm_slurm(cluster: Cluster) -> None:
    cluster.start()
    done = cluster.site.run("slurm", "sbatch", "--wrap", "true")
    assert (done.returncode, done.stdout) == (0, "Submitted batch job 1\n")
    assert json.loads(cluster.site.run("slurm", "squeue", "-j1", "-tall", "--json").stdout)["jobs"][0]["job_id"] == 1
    assert "there is no command" in cluster.site.run("slurm", "sbtach").stderr
    assert "where to?" in cluster.site.run("slurm", "link").stderr
    assert subprocess.run([sys.executable, "-m", "vrm.cli", "slurm", "--help"], capture_output=True, text=True,
                          check=True).stdout.startswith("usage: vrm slurm")


def test_dependencies_of_starts_and_failures_and_times_to_begin(cluster: Cluster) -> None:
    """Found like this on Slurm 22.05.8, but that vrm cancels what can never start. A killed manager forgets none of it."""
    root = cluster.site.root
    cluster.start()
    (root / "go").touch()
    script = "while [ -e go ]; do sleep 0.02; done"
    base = cluster.sbatch("-J", "base", "-n2", "--wrap", script)
    blocked = cluster.sbatch("-J", "blocked", "-n2", "--wrap", "exit 3")
    begun = cluster.sbatch("-J", "begun", "-d", f"after:{base}", "--wrap", "true")
    begins = cluster.sbatch("-J", "begins", "-d", f"after:{blocked}", "--wrap", "sleep 600")
    later = cluster.sbatch("-J", "later", "-d", f"after:{blocked}+1", "--wrap", "true")
    failed = cluster.sbatch("-d", f"afternotok:{blocked}", "--wrap", "true")
    worked = cluster.sbatch("-d", f"afternotok:{base}", "--wrap", "true")
    single = cluster.sbatch("-J", "base", "-d", "singleton", "--wrap", "true")
    throttled = cluster.sbatch("-a", "0-1%1", "--wrap", "true")
    changed = cluster.sbatch("-n2", "-a", "3", "-H", "--wrap", "true")
    early = cluster.sbatch("--begin", "now+1hour", "--wrap", "true")
    soon = cluster.sbatch("--begin", "now+1", "-o", "soon", "--wrap", "date +%s")
    missed = cluster.sbatch("-n2", "-t", "10", "--deadline", "now+602", "--wrap", "true")
    beyond = cluster.sbatch("-d", f"afterany:{missed}", "-o", "beyond", "--wrap", "date +%s")
    array = cluster.sbatch("-a", "1-3", "-H", "--wrap", "test $SLURM_ARRAY_TASK_ID != 2")
    each = cluster.sbatch("-a", "1-3", "-d", f"aftercorr:{array}", "--wrap", "true")

    def shown(job_id: int, form: str) -> str:
        return cluster.said("squeue", "-h", "-t", "all", "-j", f"{job_id},{job_id}", "-o", form).strip()
    assert shown(begun, "%T %r %E") == "PENDING Priority (null)"
    assert shown(later, "%T %r %E") == f"PENDING Dependency after:{blocked}+1(unfulfilled)"
    assert shown(failed, "%r %E") == f"Dependency afternotok:{blocked}(unfulfilled)"
    assert shown(single, "%r %E") == "Dependency singleton(unfulfilled)"
    assert shown(throttled, "%i|%r|%E").splitlines()[1] == f"{throttled}_[1%1]|JobArrayTaskLimit|(null)"
    when = cluster.said("squeue", "-h", "-j", str(early), "-o", "%T|%r|%S|%V", SLURM_TIME_FORMAT="%s").strip().split("|")
    assert when[:2] == ["PENDING", "BeginTime"] and abs(int(when[2]) - int(when[3]) - 3600) <= 1
    assert "Reason=BeginTime Dependency=(null)" in cluster.said("scontrol", "show", "job", str(early))
    assert " Deadline=20" in cluster.said("scontrol", "show", "job", str(missed))
    for said, form, found in (("JobName=other", "%j", "other"), ("Comment=a=b", "%k", "a=b"), ("NumNodes=1", "%D", "1"),
                              (f"Dependency=afterok:{base}", "%E", f"afterok:{base}(unfulfilled)"),
                              ("StartTime=now+1hour", "%r", "JobHeldUser"), ("Requeue=0", "%j", "other"),
                              ("Dependency=", "%E", "(null)")):
        cluster.said("scontrol", "update", f"JobId={changed}", *said.split())
        assert shown(changed, form) == found, said
    cluster.said("scontrol", "update", f"JobId={throttled}", "ArrayTaskThrottle=0")
    assert shown(throttled, "%i|%r|%E") == f"{throttled}_[0-1]|Priority|(null)"
    cluster.said("scontrol", "update", f"JobId={throttled}_1", "ArrayTaskThrottle=1")
    assert shown(throttled, "%r|%E").splitlines()[1] == "JobArrayTaskLimit|(null)"
    assert "ArrayTaskId=1 ArrayTaskThrottle=1" in cluster.said("scontrol", "show", "job", f"{throttled}_1")
    cluster.said("scontrol", "update", f"JobId={base}", "Comment=it runs")
    assert cluster.call("scontrol", "update", f"JobId={base}", "StartTime=now").returncode == 1
    assert cluster.call("scontrol", "update", f"JobId={changed}", f"Dependency=afterok:{changed}").returncode == 1
    cluster.process.kill()
    cluster.process.wait()
    cluster.start()
    assert shown(changed, "%i %j %k %E %r") == f"{changed}_[3] other a=b (null) JobHeldUser"
    assert "Requeue=0" in cluster.said("scontrol", "show", "job", str(changed)) and shown(base, "%k") == "it runs"
    cluster.said("scontrol", "release", str(changed))
    assert shown(changed, "%r") == "BeginTime"
    cluster.said("scontrol", "update", f"JobId={changed}", "StartTime=now")
    assert shown(changed, "%r") in ("Resources", "Priority")
    assert shown(later, "%T %r %E") == f"PENDING Dependency after:{blocked}+1(unfulfilled)"
    assert shown(early, "%T %r") == "PENDING BeginTime"
    wait_until(lambda: shown(missed, "%T %r") == "DEADLINE DeadLine", "it can end in time no more")
    assert cluster.state(missed) == "DEADLINE"
    (root / "go").unlink()
    wait_until(lambda: shown(begins, "%T") == "RUNNING", "it begins after another")
    cluster.said("scancel", str(begins))
    cluster.ended(base, blocked, begun, failed, worked, single, soon, beyond)
    assert [cluster.state(job) for job in (begun, failed, worked, single)] == [
        "COMPLETED", "COMPLETED", "CANCELLED", "COMPLETED"]
    assert shown(worked, "%T %r") == "CANCELLED DependencyNeverSatisfied"
    assert shown(later, "%T %r") == "PENDING BeginTime"  # a minute after the start of the other
    submitted = cluster.said("sacct", "-nXP", "-j", str(soon), "-o", "submit", SLURM_TIME_FORMAT="%s")
    assert int((root / "soon").read_text()) >= int(submitted) + 1
    cluster.said("scontrol", "release", str(array))
    cluster.ended(*range(array, array + 3), *range(each, each + 3))
    assert cluster.said("sacct", "-nXP", "-j", str(each), "-o", "state").split() == [
        "COMPLETED", "CANCELLED", "COMPLETED"]

    # When a job would start, by a forecast; and one that is not to run again.
    def asked(*words: str) -> subprocess.CompletedProcess[str]:
        return cluster.call("sbatch", "--test-only", "--wrap", "true", *words)
    before = cluster.said("squeue", "-h", "-t", "all")
    done = asked("-n1")
    assert done.stderr.startswith(f"sbatch: Job {each + 3} to start at ") and done.returncode == 0 and " using 1 processors on nodes " in done.stderr and " to start at 20" in done.stderr
    assert cluster.said("squeue", "-h", "-t", "all") == before
    done = asked("-n99")
    assert done.returncode == 1 and done.stderr.startswith("allocation failure: ")
    never = cluster.sbatch("--no-requeue", "--wrap", "sleep 600")
    wait_until(lambda: cluster.state(never) == "RUNNING", "it runs")
    done = cluster.call("scontrol", "requeue", str(never))
    assert done.returncode == 1 and "--no-requeue" in done.stderr
    assert "Requeue=0" in cluster.said("scontrol", "show", "job", str(never))
    cluster.stop()


def test_a_command_file_whose_manager_was_killed_is_answered_and_taken_once(
        cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """From another node; the manager dies behind the record of the job, before the answer."""
    run = RunDirectory(cluster.site.log, cluster.site.log, cluster.site.log / "state")

    def sent_and_killed(of: RunDirectory, command: command_files.Command, name: str = "") -> str:
        name = send(of, command, name)
        wait_until(lambda: name.encode() in of.journal.read_bytes(), "it is in the journal")
        cluster.process.kill()
        cluster.process.wait()
        (of.replies / name).unlink(missing_ok=True)
        write_json(of.commands / name, command, private=True)
        return name
    send = command_files.send
    call = Call("sbatch", ["--parsable", "-H", "--wrap", "true"], str(cluster.site.root), {}, token=command_files.new_name())
    monkeypatch.setattr(command_files, "send", sent_and_killed)
    monkeypatch.setattr(wire, "PATIENCE", 0.1)
    cluster.start()
    assert client.by_files(call, cluster.site.log) == 0  # no manager comes: the journal is asked
    assert capfd.readouterr().out == "1\n" and not list(run.commands.iterdir())
    cluster.start()
    record = client.call_to_json(replace(call, arguments=["-H", "--wrap", "true"]))
    name = sent_and_killed(run, {"do": "front", "call": record})
    cluster.start()  # the next one answers, and does not take it again
    reply = command_files.wait_reply(run, name, 20)
    assert reply is not None and (reply["out"], reply["code"]) == ("Submitted batch job 2\n", 0)
    assert cluster.said("squeue", "-h", "-o", "%i").split() == ["1", "2"]
    cluster.stop()


def test_what_jobs_use_while_they_run_and_afterwards(cluster: Cluster) -> None:
    (cluster.site.root / "eat.py").write_text(
        "import os, sys, time\nroom = bytearray(64 << 20)\nend = time.process_time() + 0.3\n"
        "while time.process_time() < end: pass\nopen(sys.argv[1], 'w').close()\n"
        "while os.path.exists('go'): time.sleep(0.02)\n")
    root, python = cluster.site.root, sys.executable
    (root / "go").touch()
    cluster.start()
    job = cluster.sbatch("-n1", data=f"#!/bin/sh\nsrun -n1 {python} eat.py one &\n{python} eat.py two\nwait\n")
    wait_until(lambda: (root / "one").exists() and (root / "two").exists(), "both have eaten")
    rows = dict(line.split("|", 1) for line in cluster.said(
        "sstat", "-aPnj", str(job), "-o", "jobid,maxrss,averss,ntasks").splitlines())
    assert set(rows) == {f"{job}.batch", f"{job}.0"}, rows
    assert all(65536 <= int(each.split("|")[0].rstrip("K")) < 400_000 for each in rows.values()), rows
    assert len(cluster.said("sstat", "-nj", str(job), "-o", "jobid").split()) == 1
    (root / "go").unlink()
    cluster.ended(job)
    wait_until(lambda: "batch" in (cluster.site.log / "steps.csv").read_text(), "its line is written")
    found = {line.split("|")[0]: line.split("|")[1:] for line in cluster.said(
        "sacct", "-nPj", str(job), "-o", "jobid,maxrss,totalcpu,usercpu").splitlines()}

    def seconds(text: str) -> float:
        minutes, _, rest = text.partition(":")
        return 60 * int(minutes) + float(rest)
    whole, script, step = (seconds(found[f"{job}{suffix}"][1]) for suffix in ("", ".batch", ".0"))
    assert step >= 0.3 and script >= 0.3 and abs(whole - script - step) < 0.01, found
    assert int(found[f"{job}.0"][0].rstrip("K")) >= 65536
    timed = cluster.sbatch("-t", "0:1", "--wrap", "sleep 600")
    cluster.ended(timed)
    assert cluster.said("sacct", "-nPj", str(timed), "-o", "state,exitcode").split() == ["TIMEOUT|0:0", "CANCELLED|0:15"]
    assert next(iter(read_jobs(cluster.site.log / "jobs.csv"))).cause == ""
    assert [row.cause for row in read_jobs(cluster.site.log / "jobs.csv") if row.id == timed] == ["timeout"]
    cluster.stop()
