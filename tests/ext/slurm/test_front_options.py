"""Options, times, formats and requests as Slurm's commands read them."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import replace
from typing import Any
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings, strategies as st

from vrm.ext.slurm.calls import answers, jobs as front, names
from vrm.ext.slurm import blocking, requests, sbatch, scancel
from vrm.ext.slurm.forms import formats, nodelists, times, state_names
from vrm.ext.slurm.calls.answers import Answer, Call, FileNeeded, CallRefused, DeferredAnswer
from vrm.ext.slurm.forms.options import Options
from vrm.ext.slurm.requests import demand
from vrm.model import JobState
from vrm.model.job import ANY, FAIL, OK, START, Dependency
from vrm.model.quantities import slurm_seconds
from vrm.ext.steps import options as step_options
from vrm.ext.steps.records import Step
from support.counters import Counter, a_job, asked, run


# ------------------------------------------------------------------------------------ options


def test_options_in_all_their_forms() -> None:
    options = Options("x", "n ntasks v\nW wait m\nq quiet n\n. wrap v\n. wait-all v -\nw nodelist v !\n")
    for said in (["-n4"], ["-n", "4"], ["--ntasks", "4"], ["--ntasks=4"], ["--nt=4"], ["-qn4"], ["-n3", "-n4"],
                 ["-n=4"], ["--wait-all=3", "-n", "4"]):
        assert options.parse(said)[0]["ntasks"] == "4", said
    assert options.parse(["a", "-q", "b", "--", "-n"]) == ({"quiet": ""}, ["a", "b", "-n"])
    assert options.parse(["-q", "a", "-n", "4"], mixed=False) == ({"quiet": ""}, ["a", "-n", "4"])
    assert options.parse(["-W", "a"]) == ({"wait": ""}, ["a"])
    for wrong, words_ in (("-z", "unrecognized"), ("--zzz", "unrecognized"), ("--w=1", "--wait, --wrap"),
                          ("-n", "needs a value"), ("--quiet=1", "takes no value"), ("-wn1", "cannot be followed")):
        with pytest.raises(CallRefused, match=words_):
            options.parse([wrong])


def test_srun_knows_the_same_options_in_a_job_and_outside_of_one() -> None:
    """And what follows an option is the same: a program is not taken for its value."""
    inside, outside = ({name: (option.letter, option.takes) for name, option in reader.names.items()}
                       for reader in (step_options.SRUN, blocking.SRUN))
    assert inside == outside
    found = step_options.parse(["--get-user-env", "-k", "--pty", "--cpu-freq=high", "--gpu-bind=closest", "-n=2", "true", "-n"])
    assert found.words == ["true", "-n"] and found.given == {"pty": "", "ntasks": "2"}
    for refused in ("--cpus-per-gpu=2", "-F", "-a1", "--bcast", "-Z"):
        with pytest.raises(step_options.UsageError, match="vrm does not do --"):
            step_options.parse([refused, "x", "true"])


@pytest.mark.parametrize("options", [sbatch.OPTIONS, blocking.SRUN, blocking.SALLOC])
def test_whatever_asks_something_of_a_job_is_an_option(options: Options) -> None:
    assert {*requests.READERS, *sbatch.FIELDS} <= options.names.keys()


@given(st.lists(st.text("-=nNtabcw ,:/3\n'", max_size=8), max_size=6), st.sampled_from(sorted(names.everything().answers)))
@settings(deadline=None, max_examples=300)
def test_no_words_break_a_command(said: list[str], name: str) -> None:
    """Whatever is typed: an answer, or a refusal with the command's name, of which some is printed."""
    handler = Counter(a_job(1), a_job(2, JobState.FAILED, code=3))
    if name in ("srun", "salloc"):
        return
    call = Call(name, said, "/work", {})
    try:
        reply = names.reply_to(call, handler)
    except CallRefused as refused:
        assert str(refused).strip()
        return
    assert isinstance(reply, (Answer, FileNeeded, DeferredAnswer))


@given(st.binary(max_size=200), st.text("#SBATCH -=nNtJoaedwp\t'\"0123456789%:,\\\n", max_size=200))
@settings(deadline=None, max_examples=200)
def test_no_script_breaks_sbatch(data: bytes, said: str) -> None:
    handler = Counter()
    for script in (data, b"#!/bin/sh\n" + data, b"#!/bin/sh\n#SBATCH " + said.encode() + b"\ntrue\n"):
        answer = run(handler, "sbatch", "job.sh", script=script)
        assert (answer.code, bool(answer.err)) in ((0, False), (1, True))


@given(st.text(max_size=12))
@settings(deadline=None, max_examples=300)
def test_no_text_breaks_times_formats_and_lists(text: str) -> None:
    for read in (slurm_seconds, lambda said: times.when(said, 1.7e9), state_names.states_of, sbatch.signal_number,
                 lambda said: formats.letters(said, {"i": ("ID", str)}),
                 lambda said: formats.names(said, {"id": ("ID", str)}),
                 lambda said: formats.fields(said, {"id": formats.SacctField("ID", 5, str)}),
                 lambda said: state_names.find(Counter(), said)):
        try:
            read(text)  # type: ignore[no-untyped-call]
        except (ValueError, OverflowError) as error:
            assert isinstance(error, ValueError)


# ------------------------------------------------------------------------------------ times


@pytest.mark.parametrize("text, seconds", [
    ("5", 300), ("5:30", 330), ("1:02:03", 3723), ("1-0", 86400), ("2-1:30", 2 * 86400 + 5400),
    ("1-00:00:01", 86401), ("0:30", 30), ("UNLIMITED", math.inf), ("infinite", math.inf)])
def test_time_limits(text: str, seconds: float) -> None:
    assert slurm_seconds(text) == seconds


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_moments(utc: None) -> None:
    now = 1_700_000_000.0  # 2023-11-14T22:13:20
    assert times.moment(now, {}) == "2023-11-14T22:13:20"
    assert times.moment(now, {"SLURM_TIME_FORMAT": "standard"}) == "2023-11-14T22:13:20"
    assert times.moment(now, {"SLURM_TIME_FORMAT": "%s"}) == "1700000000"
    assert times.moment(math.inf, {}) == "N/A"
    for said, found in (("now", now), ("now-1hour", now - 3600), ("midnight", 1_699_920_000), ("2023-11-14", 1_699_920_000),
                        ("2023-11-14T22:13", now - 20), ("22:13:20", now), ("1700000000", now), ("now+2days", now + 172800)):
        assert times.when(said, now) == found, said
    assert [times.used(each) for each in (7, 67, 3607, 90000)] == ["0:07", "1:07", "1:00:07", "1-01:00:00"]
    assert [times.elapsed(each) for each in (7, 3607, 90000)] == ["00:00:07", "01:00:07", "1-01:00:00"]


# ------------------------------------------------------------------------------------ sbatch


def test_what_is_typed_comes_before_what_the_script_says() -> None:
    script = b"#!/bin/bash\n# a remark\n#SBATCH -J 'my job' -n 2\n#SBATCH --time=10\n\n#SBATCH -c 3\necho\n#SBATCH -n 9\n"
    found = asked("-n", "4", "job.sh", "-n", "1", "a b", script=script).values
    assert (found["app"], found["procs"], found["cores"], found["walltime"]) == ("my job", 4, 3, 600.0)
    assert found["arguments"] == ("-n", "1", "a b") and found["directory"] == "/work"
    assert found["file"] == "/work/job.sh" and found["output"] == "slurm-%j.out"


def test_a_deadline() -> None:
    found = asked("-t", "2", "--deadline", "now+3minutes", "job.sh").values
    assert (found["walltime"], found["deadline"]) == (120.0, 180.0)
    ended = a_job(1, JobState.CANCELLED, cause="deadline", fields=found)
    assert (state_names.state(ended), state_names.reason(ended), ended.deadline) == ("DEADLINE", "DeadLine", 1_699_999_180.0)


def test_lists_of_nodes_in_files() -> None:
    """A list with a slash is a file, as -F's value is; SLURM_HOSTFILE has a line for the node of each task."""
    lists = {"/work/a/list": b"n1 # the first\nn[2-3]\n\n", "/work/rest": b"n4,n5*2\n", "/work/hosts": b"n2\nn1\n" * 3,
             "/work/odd": b"n1\nn1\nn2\n", "/work/none": b"# nothing\n"}

    def read(*said: str, env: dict[str, str] | None = None) -> Any:
        options = blocking.SRUN if said[0] == "srun" else sbatch.OPTIONS
        call = Call(said[0], [], "/work", env or {}, missing={"/work/gone": "No such file or directory"})
        chosen = options.parse(said[1:])[0]
        while isinstance(found := nodelists.read(chosen, options, call), FileNeeded):
            call = replace(call, sent={**call.sent, found.path: lists[found.path]})
        return demand(found, options)
    assert read("sbatch", "-w", "a/list", "-x", "./rest", "-n4") == {
        "procs": 4, "cores": 1, "nodes": (3, 0), "nodelist": frozenset({"n1", "n2", "n3"}), "exclude": frozenset({"n4", "n5"})}
    assert read("sbatch", "-F", "rest", "-w", "n9")["nodelist"] == {"n4", "n5"}
    assert read("srun", "-N1", "-w", "a/list")["nodelist"] == {"n1"}
    by_task = read("sbatch", env={"SLURM_HOSTFILE": "hosts"})
    assert (by_task["procs"], by_task["nodes"], by_task["tasks_per_node"]) == (6, (2, 2), 3)
    assert read("sbatch", "-w", "n7", env={"SLURM_HOSTFILE": "hosts"})["nodelist"] == {"n7"}
    for said, env, why in ((["-w", "./gone"], {}, "gone: No such file"), (["-F", "none"], {}, "names no node"),
                           ([], {"SLURM_HOSTFILE": "odd"}, "equally often")):
        with pytest.raises(CallRefused, match=why):
            read("sbatch", *said, env=env)
    call = Call("sbatch", ["-w", "a/list", "job.sh"], "/work", sent={"/work/job.sh": b"#!/bin/sh\n#SBATCH -x n9\n"})
    handler = Counter()
    assert names.reply_to(call, handler) == FileNeeded("/work/a/list")
    names.reply_to(replace(call, sent={**call.sent, **lists}), handler)
    assert handler.asked[0].values["exclude"] == {"n9"} and len(handler.asked[0].values["nodelist"]) == 3


def test_a_step_of_a_whole_job_is_not_asked_for_nodes_again() -> None:
    assert blocking.SRUN.without(["-lw", "n1", "-n2", "--exclude=n3", "-x", "n4", "-F", "f", "prog", "-w", "x"],
                                 "nodelist", "nodefile", "exclude") == ["--label", "-n2", "prog", "-w", "x"]


def test_stdin_wrap_and_ids() -> None:
    handler = Counter()
    assert names.reply_to(Call("sbatch", [], "/work"), handler) == FileNeeded("")
    assert names.reply_to(Call("sbatch", ["/dev/stdin"], "/work"), handler) == FileNeeded("/dev/stdin")
    assert run(handler, "sbatch", "--wrap", "echo 'a b'\n").out == "Submitted batch job 1\n"
    assert handler.asked[0].script == b"#!/bin/sh\necho 'a b'\n\n" and handler.asked[0].values["app"] == "wrap"
    assert run(handler, "sbatch", "--parsable", "job.sh").out == "2\n"
    assert run(handler, "sbatch", "-Q", "job.sh").out == ""


REQUESTS = [
    ("-N2 --ntasks-per-node=4", {"procs": 8, "nodes": (2, 2), "tasks_per_node": 4}),
    ("-N 2-4 -n 6", {"procs": 6, "nodes": (2, 4)}),
    ("-N2", {"procs": 2, "nodes": (2, 2)}), ("-n1 -N2", {"procs": 1, "nodes": (1, 1)}),
    ("--mem=4G", {"mem_per_node": 4 << 30}), ("--mem 4000", {"mem_per_node": 4000 << 20}), ("--mem=0", {}),
    ("--mem-per-cpu=1G -c 2", {"cores": 2, "mem_per_task": 2 << 30}),
    ("--gres=gpu:2", {"gpus_per_node": 2}), ("--gres=NONE", {}), ("--gres=gpu:a100:2,ssd:1", {
        "gpus_per_node": 2, "features": frozenset({"a100"}), "others_per_node": (("ssd", 1000),)}),
    ("-G 4 -n 2", {"procs": 2, "gpus_per_task": 2}), ("--gpus=3", {"gpus_per_task": 3}),
    ("--gpus=6 -N 2 -n 4", {"procs": 4, "nodes": (2, 2), "gpus_per_node": 3}),
    ("--gpus-per-task=1 --cpus-per-gpu=4", {"gpus_per_task": 1, "cores": 4}),
    ("-C ib&fast", {"features": frozenset({"ib", "fast"})}), ("-L ansys:2,x", {"licences": (("ansys", 2000), ("x", 1000))}),
    ("-w n1", {"procs": 1, "nodelist": frozenset({"n1"}), "nodes": (1, 0)}),  # as Slurm 22.05.8 counts
    ("-w n[1-2],n2", {"procs": 2, "nodelist": frozenset({"n1", "n2"}), "nodes": (2, 0)}),
    ("-w n[1-2] --ntasks-per-node=3", {"procs": 6, "nodelist": frozenset({"n1", "n2"}), "nodes": (2, 0), "tasks_per_node": 3}),
    ("-w n1 -N3", {"procs": 3, "nodelist": frozenset({"n1"}), "nodes": (3, 3)}),
    ("-w n3,n1*2 -n1", {"procs": 1, "nodelist": frozenset({"n1"}), "nodes": (1, 0)}),  # as many names as tasks
    ("-x n[1-2] -n 8", {"procs": 8, "exclude": frozenset({"n1", "n2"})}),
    ("--licenses= -n 2", {"procs": 2}), ("-A acc --qos=q --mail-type=END --hint=multithread -M all", {}),
    ("--hint=nomultithread", {"threads": 1}), ("--threads-per-core=1", {"threads": 1}), ("--threads-per-core=2", {})]


@pytest.mark.parametrize("said, wanted", REQUESTS)
def test_what_is_asked_of_the_machine(said: str, wanted: dict[str, Any]) -> None:
    found = demand(sbatch.OPTIONS.parse(said.split())[0], sbatch.OPTIONS)
    assert {**found, **wanted} == found and set(found) <= {"procs", "cores", *wanted}


@pytest.mark.parametrize("said", [
    "-n x", "-n 0", "-n -1", "-c 1.5", "-N 0", "-N 4-2", "--ntasks-per-node=a", "-t 1:2:3:4", "-t abc", "--mem=4X",
    "--mem=-1", "--gres=gpu:x:y:z", "--gpus=5 -n 2", "-C ib|fast", "-C [a*2]", "-L a|b", "-a 1-", "-a 5-1", "-a x",
    "-a 0-9%x", "-d foo:1", "-d afterok", "-d afterok:x", "-d afterok:99", "-d afterok:1?afterok:2", "-w n[", "-x n[1-",
    "-w n[1-3] -N2", "-w n1 -x n1", "--begin=soon", "--begin=now-5", "--kill-on-invalid-dep=no", "--deadline=now -t1", "--deadline=now+60",
    "--deadline=soon -t1", "--deadline=now+60 -t2", "--signal=NOSUCH@1", "--signal=USR1@x", "--open-mode=x",
    "--nosuch", "--priority=x", "--nice=x", "-O", "--cpus-per-gpu=2", "-a 99999", "--wrap=x job.sh",
    "--time", "-D"])
def test_what_vrm_cannot_follow_is_refused_aloud(said: str) -> None:
    handler = Counter(a_job(1))
    answer = run(handler, "sbatch", *said.split(), *["job.sh"] * (said not in ("--time", "-D")))
    assert answer.code == 1 and answer.out == "" and not handler.asked
    assert all(line.startswith("sbatch: error: ") for line in answer.err.splitlines()) and answer.err


@pytest.mark.parametrize("script, words_", [
    (b"", "empty"), (b"  \n", "empty"), (b"echo\n", "not a batch script"), (b"#!/bin/sh\r\necho\r\n", "DOS line ends"),
    (b"#!/bin/sh\n\0", "zero"), (b"#!/bin/sh\n#SBATCH --nosuch\n", "job.sh:2"),
    (b"#!/bin/sh\n#SBATCH -J 'open\n", "No closing quotation"), (b"#!/bin/sh\n#SBATCH -n 1 more\n", "`more` is not an option"),
    (b"#!" + b"x" * (5 << 20), "longer than")])
def test_what_is_no_script(script: bytes, words_: str) -> None:
    answer = run(Counter(), "sbatch", "job.sh", script=script)
    assert answer.code == 1 and words_ in answer.err


def test_a_script_that_cannot_be_read() -> None:
    call = Call("sbatch", ["gone.sh"], "/work", missing={"/work/gone.sh": "No such file or directory"})
    with pytest.raises(CallRefused, match=r"Unable to open file gone\.sh: No such file"):
        names.reply_to(call, Counter())


def test_ten_thousand_lines() -> None:
    script = b"#!/bin/sh\n" + b"#SBATCH -n 2\n" * 10_000 + b"#SBATCH -n 3\n"
    assert asked("job.sh", script=script).values["procs"] == 3


def test_time_limits_and_the_end_of_the_allocation() -> None:
    handler = Counter()
    assert (asked("job.sh").values["walltime"], asked("job.sh").flexible) == (3600.0, True)
    assert not asked("-t", "5", "job.sh").flexible
    handler.site = replace(handler.site, end=handler.now + 700, closing=handler.now + 600)
    found = asked("-t", "1-0", "job.sh", handler=handler)
    assert found.values["walltime"] == 600.0 and found.flexible and "1-0" in found.notes[0]
    handler.asked.clear()
    assert not asked("-t", "9", "job.sh", handler=handler).flexible


def test_variables_that_a_job_gets() -> None:
    env = {"A": "1", "B": "2", "HOME": "/home/ann", "PATH": "/bin"}
    assert sbatch.exported("ALL", env) == env
    assert sbatch.exported("ALL,C=3", env) == {**env, "C": "3"}
    assert sbatch.exported("NONE", env) == {"HOME": "/home/ann", "PATH": "/bin"}
    assert sbatch.exported("A,D=x=y,NOSUCH", env) == {"A": "1", "D": "x=y", "HOME": "/home/ann", "PATH": "/bin"}


def test_dependencies_and_arrays() -> None:
    handler = Counter(a_job(1), a_job(2), a_job(3, JobState.FAILED), a_job(10, array=10, index=0),
                      a_job(11, array=10, index=1))

    def after(said: str) -> Any:
        handler.asked.clear()
        return asked("-d", said, "job.sh", handler=handler).values.get("after", ())
    assert after("afterok:1:2") == (Dependency(range(1, 3)),)
    assert after("afterany:1,afterok:10") == (Dependency.on(1, ANY), Dependency(range(10, 12)))
    assert after("afterok:10_1") == (Dependency.on(11),)
    assert after("after:1:3+5") == (Dependency.on(1, START), Dependency(range(3, 4), START, delay=300.0))
    assert after("afternotok:3,afterany:1+7") == (Dependency.on(3, FAIL), Dependency.on(1, ANY))
    handler.asked.clear()
    single = asked("-J", "solve", "-d", "singleton", "job.sh", handler=handler)
    assert single.values["after"] == (Dependency(range(1, 3), ANY), Dependency(range(10, 12), ANY))
    assert single.values["singleton"] == "1-2,10-11"
    handler.asked.clear()
    each = asked("-a", "0-1", "-d", "aftercorr:10,after:2", "job.sh", handler=handler)
    assert each.values["after"] == (Dependency.on(2, START),)
    assert each.own == {0: (Dependency.on(10, OK),), 1: (Dependency.on(11, OK),)}
    assert after("aftercorr:10") == (Dependency(range(10, 12)),)
    for said, why in (("after:1+x", "expected minutes behind the +, got `x`"), ("afterok:99", "there is no job 99"), ("soon:1", "not one of"),
                      ("afterok", "names no job"), ("afterok:a", "not an id"), ("afterok:1?afterok:2", "not for one of")):
        done = run(handler, "sbatch", "-d", said, "job.sh")
        assert done.code == 1 and why in done.err, done
    assert "array 10 has no task 2" in run(handler, "sbatch", "-a", "0-2", "-d", "aftercorr:10", "job.sh").err
    array = asked("-a", "1-5:2,9%2", "job.sh")
    assert (array.indices, array.width, array.values["output"]) == ((1, 3, 5, 9), 2, "slurm-%A_%a.out")


BEGINS = {  # by Slurm 22.05.8, at 07:05:13 on a Monday, in UTC
    "16:00": "2026-11-23T16:00:00", "2030-01-20T12:34:00": "2030-01-20T12:34:00", "tomorrow": "2026-11-24T00:00:00",
    "noon": "2026-11-23T12:00:00", "teatime": "2026-11-23T16:00:00", "now+60": "2026-11-23T07:06:13",
    "now+2days": "2026-11-25T07:05:13", "now+1hour": "2026-11-23T08:05:13", "0120": "2027-01-20T00:00:00",
    "01/20/30": "2030-01-20T00:00:00", "012030": "2030-01-20T00:00:00", "5:30PM": "2026-11-23T17:30:00",
    "midnight": "2026-11-24T00:00:00", "5pm": "", "nonsense": "", "now+x": "", "25:00": "", "2030-13-01": ""}


@pytest.mark.parametrize("said", BEGINS)
def test_a_job_begins_when_slurm_would_let_it(utc: None, said: str) -> None:
    handler = Counter()
    handler.now = times.when("2026-11-23T07:05:13", 0)
    done = run(handler, "sbatch", "--begin", said, "job.sh")
    if BEGINS[said]:
        assert handler.asked[0].values["begin"] == times.when(BEGINS[said], 0) - handler.now, done
    else:
        assert done.code == 1 and "--begin" in done.err and not handler.asked
    for past in ("2010-01-20", "today", "now"):
        assert asked("--begin", past, "job.sh").values["begin"] == 0


def test_what_a_job_would_do() -> None:
    """In the words of Slurm 22.05.8, on standard error; nothing is submitted."""
    handler = Counter()
    done = run(handler, "sbatch", "--test-only", "-n", "3", "job.sh", env={"TZ": "UTC"})
    start = times.moment(handler.now + 60, {})
    assert (done.out, done.code, handler.asked) == ("", 0, [])
    assert done.err == f"sbatch: Job 99 to start at {start} using 3 processors on nodes n[1-2] in partition vrm\n"


@pytest.mark.parametrize("said, wanted", [((), None), (("--no-requeue",), "no"), (("--requeue",), "yes"),
                                          (("--requeue", "--no-requeue"), "no")])
def test_whether_a_job_may_run_again(said: Sequence[str], wanted: str | None) -> None:
    assert asked(*said, "job.sh").values.get("requeue") == wanted


@pytest.mark.parametrize("name", sorted(names.everything().answers))
def test_each_command_says_what_it_is(name: str) -> None:
    """Whatever else is wrong with what was typed, and nothing is done."""
    if name in names.LAUNCHERS:
        return
    pbs = name.startswith(("q", "pbs", "trace"))
    for word in ("--help", "--version", *(() if pbs else ("--usage", "-V"))):
        handler = Counter(a_job(1))
        done = run(handler, name, word)
        assert (done.code, done.err) == (0, "") and not handler.done and not handler.asked, (word, done)
        said = "pbs_version = vrm\n" if pbs else "slurm 22.05.8\n"
        assert done.out == said if "ersion" in word or word == "-V" else name in done.out.partition("\n")[0]
    assert "not valid in a script" in run(handler, "sbatch", "job.sh", script=b"#!/bin/sh\n#SBATCH --help\n").err


@pytest.mark.parametrize("name, app, shown", [
    ("solve", "solve", "solve"), ("a/b", "a_b", "a/b"), ("-x", "x", "-x"), ("..", "job..", ".."), ("12", "12", "12"),
    ("x" * 300, "x" * 200, "x" * 300), ("two\nlines", "two lines", "two lines")])
def test_names(name: str, app: str, shown: str) -> None:
    values = asked("--job-name", name, "job.sh").values
    assert (values["app"], values.get("title", values["app"])) == (app, shown)


# ------------------------------------------------------------------------------------ squeue and others


def test_formats_of_squeue(utc: None) -> None:
    handler = Counter(a_job(1, nodes=("n1", "n2"), cores=(4, 4), start=1_699_999_400.0),
                      a_job(2, JobState.QUEUED, why=front.RESOURCES),
                      a_job(3, JobState.FAILED, code=1, start=1_699_999_000.0, end=1_699_999_500.0))

    def shown(*words_: str, **env: str) -> str:
        answer = run(handler, "squeue", *words_, env=env)
        assert (answer.err, answer.code) == ("", 0)
        return answer.out
    assert shown("-h", "-o", "%i|%t|%j|%u|%D|%C|%R|%M|%l|%P") == (
        "2|PD|solve|ann|1|2|(Resources)|0:00|10:00|vrm\n1|R|solve|ann|2|8|n[1-2]|10:00|10:00|vrm\n")
    assert shown("-h", "-j1", "-o", "%%i\\|%%T") == "1\\|RUNNING\n"  # several % are one
    assert shown("-h", "-j1,1", "-o", '"%u"') == '"ann"\n'
    assert shown("-j2", "-o", "%.5i %4t|") == "JOBID ST  |\n    2 PD  |\n"
    assert shown("-h", "-j1", "-o", "%.18i %.8j %.8u %.2t") == "                 1    solve      ann  R\n"
    assert shown("-h", "-t", "all", "-o", "%A %T %r") == (
        "2 PENDING Resources\n1 RUNNING None\n3 FAILED NonZeroExitCode\n")
    assert shown("-h", "-t", "F,CD", "-o", "%i %R") == "3 (NonZeroExitCode)\n"
    assert shown("-O", "JobArrayID,StateCompact:3,Reason", "--me", "-t", "all").splitlines()[1] == (
        "2                   PD Resources           ")
    assert shown("-h", "-j1", "-o", "%S %V", SLURM_TIME_FORMAT="%s") == "1699999400 1699999000\n"
    assert shown("-h", "-u", "bob") == "" and shown("-h", "-u", "bob,ann") and shown("-h", "-u", "1000")
    assert shown("-h", "-n", "solve,x", "-o", "%i") == "2\n1\n" and shown("-h", "-n", "x") == ""
    handler.all[4] = a_job(4, JobState.QUEUED, fields={"nodelist": frozenset({"n1", "n2"}), "exclude": frozenset({"n3"})})
    assert shown("-h", "-j4", "-o", "%n %x %D") == "n[1-2] n3 2\n" and shown("-h", "-j2", "-o", "%n|%x") == "|\n"
    assert shown("-h", "-j4", "-O", "ReqNodes,ExcNodes").split() == ["n[1-2]", "n3"]
    found = json.loads(shown("--json", "-j4"))["jobs"][0]
    assert (found["required_nodes"], found["excluded_nodes"]) == ("n[1-2]", "n3")
    text = run(handler, "scontrol", "show", "job", "4").out
    assert "ReqNodeList=n[1-2] ExcNodeList=n3\n" in text and "NumNodes=2" in text
    del handler.all[4]
    assert [each["job_id"] for each in json.loads(shown("--json"))["jobs"]] == [2, 1] and shown(SQUEUE_FORMAT="%i") == "JOBID\n2\n1\n"
    assert run(handler, "squeue", "-j", "99").code == 1 and run(handler, "squeue", "-j", "98,99").code == 0
    for wrong in (["-j", "x"], ["-t", "x"], ["-S", "?"], ["word"], ["-i5"], ["--yaml"]):
        answer = run(handler, "squeue", *wrong)
        assert answer.code == 1 and answer.err.startswith("squeue: error: ") and not answer.out, wrong


def test_what_is_no_column_is_complained_about_and_left_out() -> None:
    """As Slurm 22.05 does; clients put quotes around their formats."""
    handler = Counter(a_job(1, JobState.QUEUED))
    wrong = "squeue: error: Invalid job format specification: {}\n"
    assert run(handler, "squeue", "-h", '--Format=",JobID:5,wait4switch:6,nosuch:4,Tres-Per-Job:5,"') == Answer(
        "1    0:00  N/A  \n", wrong.format('"') + wrong.format("nosuch") + wrong.format('"'))
    assert run(handler, "squeue", "-o", "%i %$|%5 i") == Answer("JOBID %$|%5 i\n1 %$|%5 i\n", wrong.format("%$|") + wrong.format(
        "%5 i"))
    answer = run(handler, "sinfo", "-h", "-O", "nosuch,PreemptMode:4")
    assert answer.out == "OFF \n" and answer.err == "sinfo: error: Invalid job format specification: nosuch\n" and not answer.code


def test_jobs_of_an_array_that_wait_alike_are_one_line() -> None:
    """As Slurm 22.05 prints them."""
    waiting = [a_job(10 + index, JobState.QUEUED, array=10, index=index, why=front.LIMIT, fields={"throttle": 2})
               for index in (3, 4, 5, 7)]
    handler = Counter(a_job(10, JobState.RUNNING, nodes=("n1",), array=10, index=1), *waiting,
                      a_job(20, JobState.QUEUED, array=10, index=10, why=front.HELD), a_job(30, JobState.QUEUED))

    def shown(*words_: str, **env: str) -> list[str]:
        answer = run(handler, "squeue", "-h", *words_, env=env)
        assert (answer.err, answer.code) == ("", 0)
        return sorted(answer.out.splitlines())

    assert shown("-o", "%i %K %F %T") == ["10_1 1 10 RUNNING", "10_[10] 10 10 PENDING", "10_[3-5,7%2] 3-5,7%2 10 PENDING",
                                          "30 N/A 30 PENDING"]
    each = ["10_1", "10_10", "10_3", "10_4", "10_5", "10_7"]
    assert shown("-r", "-j10", "-o", "%i") == shown("-j10", "-o", "%i", SQUEUE_ARRAY="1") == each
    assert shown("-j", "10_[3-4]", "-o", "%i") == ["10_3", "10_4"]
    assert len(json.loads(run(handler, "squeue", "--json").out)["jobs"]) == 7


def test_sacct(utc: None) -> None:
    handler = Counter(
        a_job(1, JobState.COMPLETED, nodes=("n1",), cores=(2,), start=1_699_999_400.0, end=1_699_999_465.0, code=0),
        a_job(2, JobState.CANCELLED, nodes=("n1",), cores=(2,), start=1_699_999_400.0, end=1_699_999_401.0, code=143),
        a_job(10, JobState.QUEUED, array=10, index=3, why=front.HELD))

    def shown(*words_: str, **env: str) -> str:
        answer = run(handler, "sacct", *words_, env=env)
        assert (answer.err, answer.code) == ("", 0)
        return answer.out
    assert shown("-S", "2023-11-14", "-P", "-j", "1,2", "-o", "jobid,state,exitcode,end,nodelist", SLURM_TIME_FORMAT="%s"
                 ) == ("JobID|State|ExitCode|End|NodeList\n1|COMPLETED|0:0|1699999465|n1\n"
                       "1.batch|COMPLETED|0:0|1699999465|n1\n2|CANCELLED by 1000|0:0|1699999401|n1\n"
                       "2.batch|CANCELLED|0:15|1699999401|n1\n")
    assert shown("-nX", "--jobs", "10", "-o", "jobid,jobidraw,state%20,reason%12", "-p") == "10_3|10|PENDING|JobHeldUser|\n"
    assert shown("-Xn", "-j", "1,2", "-o", "jobid%4,state%8,elapsed") == (
        "   1 COMPLET+   00:01:05 \n   2 CANCELL+   00:00:01 \n")
    assert shown("-X", "-j1").splitlines()[1] == "------------ ---------- ---------- ---------- ---------- ---------- -------- "
    assert shown("-X", "-n", "--name", "x,solve", "-s", "CD", "-o", "jobid") == "1            \n"
    assert shown("-X", "-n", "-S", "2023-11-15", "-o", "jobid").split() == ["10_3"]
    assert shown("-n", "-u", "bob") == "" and "JobIDRaw" in shown("--helpformat")
    assert shown("-nX", "-j1", "-o", "Account%256").strip() == ""
    assert run(handler, "sacct", "-nu", "ann", "-o", "Account%256", "|", "tail", "-1").out == ""  # without a shell
    for wrong in (["-o", "nosuch"], ["-S", "x"], ["-j", "x"], ["-s", "x"], ["word"]):
        assert run(handler, "sacct", *wrong).err.startswith("sacct: error: "), wrong


@pytest.mark.parametrize("state, cause, code, reason, shown", [  # as Slurm 22.05.8 and its sacct have shown them
    (JobState.TIMEOUT, "timeout", 143, "", "TIMEOUT 0:0 TimeLimit CANCELLED 0:15"),
    (JobState.CANCELLED, "cancel", 143, "", "CANCELLED by 1000 0:0 None CANCELLED 0:15"),
    (JobState.FAILED, "", 137, "killed by signal 9 (SIGKILL)", "FAILED 0:9 NonZeroExitCode FAILED 0:9"),
    (JobState.FAILED, "", 137, "exit 137", "FAILED 137:0 NonZeroExitCode FAILED 137:0"),
    (JobState.FAILED, "node", None, "node n1 is down", "NODE_FAIL 0:0 NodeDown CANCELLED 1:0"),
    (JobState.FAILED, "memory", 137, "", "OUT_OF_MEMORY 0:125 OutOfMemory OUT_OF_MEMORY 0:125"),
    (JobState.CANCELLED, "interrupted", 143, "", "PREEMPTED 0:0 None CANCELLED 0:15"),
    (JobState.CANCELLED, "", None, "job 3, on which it depends, ended as failed",
     "CANCELLED 0:0 DependencyNeverSatisfied")])
def test_how_jobs_ended(state: JobState, cause: str, code: int | None, reason: str, shown: str) -> None:
    begun = {} if "depends" in reason else {"nodes": ("n1",), "start": 1_699_999_400.0}
    handler = Counter(a_job(1, state, cores=(2,), end=1_699_999_401.0, code=code, cause=cause, reason=reason, **begun))
    job, *steps = run(handler, "sacct", "-nP", "-j1", "-o", "state,exitcode,reason").out.splitlines()
    assert " ".join([job.replace("|", " "), *(step.rstrip("|").replace("|", " ") for step in steps)]) == shown
    word = state_names.states_of(shown.partition(" ")[0])
    assert word and run(handler, "squeue", "-h", "-t", word[0], "-o", "%i %T").out == f"1 {word[0]}\n"


def test_what_steps_have_used() -> None:
    """The script's line counts its steps, too: what is left is its own. In the forms of Slurm 22.05.8."""
    class Used(Counter):
        def steps(self, job: front.JobView) -> list[Step]:
            return [Step(1, "0", "solve", 5, 14, "completed", 0, 2, 2, "n1", 0.895, 0.137, 118_583_296),
                    Step(1, "batch", "batch", 3, 14, "completed", 0, 1, 2, "n1", 1.279, 0.225, 118_583_296)]
    handler = Used(a_job(1, JobState.COMPLETED, nodes=("n1",), cores=(2,), start=3.0, end=14.0, code=0))
    asked = "JobID,MaxRSS,AveRSS,TotalCPU,UserCPU,SystemCPU,AveCPU,CPUTime,Elapsed,NTasks"
    assert run(handler, "sacct", "-P", "-j1", "-o", asked).out.splitlines() == [
        asked.replace(",", "|"), "1|||00:01.504|00:01.279|00:00.225||00:00:22|00:00:11|",
        "1.batch|||00:00.472|00:00.384|00:00.088|00:00:00|00:00:22|00:00:11|1",
        "1.0|115804K||00:01.032|00:00.895|00:00.137|00:00:00|00:00:18|00:00:09|2"]
    assert [times.cpu(seconds) for seconds in (0, 59.9994, 61, 3600, 90061)] == [
        "00:00:00", "00:59.999", "01:01.000", "01:00:00", "1-01:01:01"]


def test_seff() -> None:
    class Used(Counter):
        def steps(self, job: front.JobView) -> list[Step]:
            return [Step(1, "0", "solve", 0.0, 1.0, "completed", 0, 8, 8, "n1 n2", 300.0, 100.0, 1 << 30)]
    handler = Used(
        a_job(1, JobState.COMPLETED, nodes=("n1", "n2"), cores=(4, 4), start=1_699_999_400.0, end=1_699_999_500.0, code=0,
              fields={"mem_per_node": 2 << 30}),
        a_job(10, JobState.QUEUED, array=10, index=3))
    assert run(handler, "seff", "1").out.splitlines()[3:] == [
        "State: COMPLETED (exit code 0)", "Nodes: 2", "Cores per node: 4", "CPU Utilized: 00:06:40",
        "CPU Efficiency: 50.00% of 00:13:20 core-walltime", "Job Wall-clock time: 00:01:40", "Memory Utilized: 1.00 GB",
        "Memory Efficiency: 25.00% of 4.00 GB (2.00 GB/node)"]
    waits = run(handler, "seff", "10").out
    assert "Array Job ID: 10_3" in waits and waits.endswith("Efficiency not available for jobs in the PENDING state.\n")
    assert run(handler, "seff").code == 1


def test_sstat() -> None:
    handler = Counter(a_job(1), a_job(2, JobState.QUEUED), a_job(10, array=10, index=3))
    columns = ["-P", "-o", "JobID,MaxRSS,AveRSS,AveCPU,NTasks,MaxRSSNode"]
    assert run(handler, "sstat", "-j", "1", *columns).out == (
        "JobID|MaxRSS|AveRSS|AveCPU|NTasks|MaxRSSNode\n1.0|4096K|3072K|00:00:30|2|n1\n")
    assert run(handler, "sstat", "-aj1,10", *columns, "-n").out == (
        "1.batch|3072K|5120K|00:00:01|1|n1\n1.0|4096K|3072K|00:00:30|2|n1\n"
        "10_3.batch|3072K|5120K|00:00:01|1|n1\n10_3.0|4096K|3072K|00:00:30|2|n1\n")
    assert run(handler, "sstat", "-nPij1.batch").out == "1.batch|n1|7,8\n"
    for said in ("-j2", "-j99", "-j1.7"):  # Slurm gives status 0 for them, too
        done = run(handler, "sstat", said)
        assert done.err.startswith("sstat: error: ") and done.out.startswith("JobID ") and not done.code
    for wrong in ([], ["-j", "x"], ["-j1", "-o", "bogus"], ["1"]):
        assert run(handler, "sstat", *wrong).err.startswith("sstat: error: ")
        assert run(handler, "sstat", *wrong).code == 1


def test_json_has_the_shape_of_slurm() -> None:
    """As readers take it apart: state.current[0] of sacct, job_state[0] of squeue, numbers that may be unset."""
    handler = Counter(a_job(1, nodes=("n1", "n2"), cores=(4, 4), start=1_699_999_400.0),
                      a_job(2, JobState.QUEUED, why=front.RESOURCES),
                      a_job(3, JobState.FAILED, code=1, start=1_699_999_000.0, end=1_699_999_500.0))
    queued, = json.loads(run(handler, "squeue", "--json", "-j2").out)["jobs"]
    assert queued["job_state"] == ["PENDING"] and queued["state_reason"] == "Resources"
    assert queued["array_task_id"] == {"set": False, "infinite": False, "number": 0}
    assert queued["time_limit"]["set"] and queued["time_limit"]["number"] > 0
    whole = json.loads(run(handler, "sacct", "--json", "-j", "1,3").out)
    assert whole["meta"]["plugin"]["data_parser"] == "data_parser/v0.0.40" and whole["errors"] == []
    running, failed = whole["jobs"]
    assert running["state"] == {"current": ["RUNNING"], "reason": "None"} and running["nodes"]
    assert [each["step"]["id"] for each in running["steps"]] == ["1.batch"]
    assert failed["state"]["current"] == ["FAILED"] and failed["exit_code"]["status"] == ["ERROR"]
    assert failed["time"]["elapsed"] == failed["time"]["end"] - failed["time"]["start"]
    assert {each["type"]: each["count"] for each in running["tres"]["allocated"]} == {"cpu": 8, "node": 2}
    rows = json.loads(run(handler, "sinfo", "--json").out)["sinfo"]
    assert [row["nodes"]["nodes"] for row in rows] == [["n1"], ["n2"], ["n3"]]
    assert [row["node"]["state"] for row in rows] == [["MIXED"], ["IDLE"], ["DOWN"]]
    assert run(handler, "sinfo", "-h", "-o", "%n %c").out == "n1 8\nn2 8\nn3 8\n"  # a line for each host
    assert run(handler, "squeue", "-h", "-j1", "-O", "tres-alloc").out.startswith("cpu=")


def test_sinfo_and_scontrol() -> None:
    handler = Counter(a_job(1, nodes=("n1",), cores=(2,)), a_job(2, JobState.QUEUED))
    assert run(handler, "sinfo", "-h", "-o", "%P %D %t %N").out == "vrm* 1 mix n1\nvrm* 1 idle n2\nvrm* 1 down n3\n"
    assert run(handler, "sinfo", "-h", "-o", "%P").out == "vrm*\n"
    assert run(handler, "sinfo", "--noheader", "-O", "CPUs:5,Partition:6").out == "8    vrm*  \n"
    assert run(handler, "sinfo", "-h", "-o", "%C %F").out == "3/13/8/24 1/1/1/3\n"
    assert run(handler, "sinfo", "-hN", "-o", "%N %c").out == "n1 8\nn2 8\nn3 8\n"
    assert run(handler, "scontrol", "show", "hostnames", "n[1-3,7],m").out == "n1\nn2\nn3\nn7\nm\n"
    assert run(handler, "scontrol", "show", "hostname", env={"SLURM_JOB_NODELIST": "n[1-2]"}).out == "n1\nn2\n"
    assert "JobId=1 JobName=solve" in run(handler, "scontrol", "show", "job", "1").out
    assert run(handler, "scontrol", "show", "job", "-o").out.count("\n") == 2
    assert "CPUTot=8" in run(handler, "scontrol", "-a", "show", "-o", "nodes").out
    assert "SLURM_VERSION" in run(handler, "scontrol", "show", "config").out
    assert run(handler, "scontrol", "--version").out == "slurm 22.05.8\n"
    assert run(handler, "scontrol", "hold", "2").code == 0 and handler.done.pop() == ("hold", 2)
    assert run(handler, "scontrol", "update", "JobId=1", "TimeLimit=+5", "Priority=7").code == 0
    assert handler.done.pop() == ("change", 1, {"priority": 7, "walltime": 900.0})
    for wrong in (["show"], ["show", "x"], ["show", "job", "9"], ["hold"], ["hold", "9"], ["suspend", "1"], [],
                  ["update", "JobId=1", "Dependency=x"], ["update", "TimeLimit=1"], ["show", "hostnames"],
                  ["update", "JobId=1", "TimeLimit=x"], ["show", "node", "x"]):
        answer = run(handler, "scontrol", *wrong)
        assert answer.code == 1 and answer.err and not handler.done, wrong


def test_scontrol_update_and_listpids() -> None:
    handler = Counter(a_job(1), a_job(2, JobState.QUEUED, array=1, fields={
        "throttle": 1, "after": (Dependency.on(1, ANY),), "variables": {"SLURM_ARRAY_TASK_COUNT": "2"}}))
    for said, change in (("JobName=a b", {"title": "a b"}), ("Comment=x\ty", {"comment": "x y"}),
                         ("Requeue=0", {"requeue": "no"}), ("NumNodes=2", {"nodes": (2, 2)}),
                         ("NumNodes=1-4", {"nodes": (1, 2)}), ("Nice=", {"priority": -100}),
                         ("StartTime=now+60", {"begin": 1060.0}),
                         ("Dependency=afterok:1", {"after": (Dependency.on(1), Dependency.on(1, ANY)), "singleton": ""}),
                         ("Dependency=", {"after": (Dependency.on(1, ANY),), "singleton": ""})):
        assert run(handler, "scontrol", "update", "jobid=2", said) == Answer(), said
        assert handler.done.pop() == ("change", 2, change)
    assert run(handler, "scontrol", "update", "JobId", "2", "JobName", "a=b", "Priority=3") == Answer()
    assert handler.done.pop() == ("change", 2, {"title": "a=b", "priority": 3})
    for said in ("Requeue=x", "NumNodes=3", "NumNodes=x", "StartTime=x", "Dependency=singleton", "ArrayTaskThrottle=x",
                 "Priority=x", "Dependency=afterok:9"):
        answer = run(handler, "scontrol", "update", "JobId=2", said)
        assert answer.code == 1 and said.partition("=")[0].lower() in answer.err.lower() and not handler.done, answer
    assert "vrm changes TimeLimit, Priority," in run(handler, "scontrol", "update", "JobId=2", "Gres=gpu:1").err
    assert [line.split()[:3] for line in run(handler, "scontrol", "listpids", "1.0").out.splitlines()] == [
        ["PID", "JOBID", "STEPID"], ["9", "1", "0"], ["10", "1", "0"]]
    assert run(handler, "scontrol", "listpids").out.count("\n") == 5 and run(handler, "scontrol", "listpids", "2").code == 1
    assert "keeps its cores" in run(handler, "scontrol", "suspend", "1").err


@given(st.lists(st.sampled_from([JobState.COMPLETED, JobState.RUNNING, JobState.QUEUED, None]), min_size=1, max_size=20),
       st.integers(0, 6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_how_many_jobs_of_an_array_run_at_a_time(states: list[JobState | None], limit: int, before: int, random: Any) -> None:
    """After any state of the array never more start than may, and all do. None: it has run, and waits again."""
    named, count = Dependency.on(90, OK), {"SLURM_ARRAY_TASK_COUNT": str(len(states))}
    handler = Counter(a_job(90, JobState.COMPLETED), *(
        a_job(100 + at, state or JobState.QUEUED, array=100, index=at, begun=state is None, fields={
            "variables": count, "throttle": before,
            "after": (named, *((Dependency.on(100 + at - before, ANY),) if at >= before else ()))})
        for at, state in enumerate(states)))
    assert run(handler, "scontrol", "update", "JobId=100", f"ArrayTaskThrottle={limit}") == Answer()
    after: dict[int, set[int]] = {100 + at: set() for at in range(len(states))}  # those that have run wait for nothing
    for _, job_id, change in handler.done:
        assert change["throttle"] == limit and named in change["after"]
        after[job_id] = {each for one in change["after"] for each in one.ids if one.kind == ANY}
    running = {100 + at for at, state in enumerate(states) if state is JobState.RUNNING}
    waiting = {100 + at for at, state in enumerate(states) if state in (JobState.QUEUED, None)}
    again = {100 + at for at, state in enumerate(states) if state is None}
    while running or waiting:
        starts = [job_id for job_id in sorted(waiting) if not after[job_id] & (running | waiting)]
        for job_id in starts:
            waiting.remove(job_id)
            running.add(job_id)
            assert not limit or job_id in again or len(running) <= limit
        if running:
            running.remove(random.choice(sorted(running)))
        else:
            assert not waiting, "they wait for ever"


def test_scontrol_waits_for_jobs_and_puts_them_first() -> None:
    handler = Counter(a_job(1), a_job(2, JobState.QUEUED), a_job(3, JobState.FAILED))

    def wait(job_id: str) -> DeferredAnswer:
        found = names.reply_to(Call("scontrol", ["wait_job", job_id], "/work"), handler)
        assert isinstance(found, DeferredAnswer)
        return found
    waits = wait("2")
    assert waits.poll() is None
    handler.all[2] = a_job(2)
    assert waits.poll() == Answer("Job 2 is ready\n")
    ended = wait("3").poll()
    assert ended is not None and ended.code == 1
    assert run(handler, "scontrol", "top", "2").code == 0 and handler.done.pop() == ("change", 2, {"priority": 1})
    for said in ("Partition=x", "QOS=long", "Account=a"):  # vrm has none of these, and takes any for a new job
        assert run(handler, "scontrol", "update", "JobId=2", said) == Answer() and not handler.done


def test_commands_that_vrm_does_not_have_refuse() -> None:
    for name in ("strigger", "sdiag", "sreport", "scrontab", "qmgr", "tracejob", "qmove"):
        answer = run(Counter(), name, "1")
        assert answer.code == 1 and f"{name}: error: vrm does not have this command" in answer.err


def test_qstat_shows_queues_and_the_server() -> None:
    """The columns are those of OpenPBS; an array counts as one job."""
    handler = Counter(a_job(1), a_job(2, JobState.QUEUED), a_job(3, JobState.QUEUED, why=front.HELD), a_job(4, JobState.FAILED),
                      a_job(10, array=10, index=0), a_job(11, JobState.QUEUED, array=10, index=4))

    def columns(text: str) -> dict[str, str]:
        head, _, row = text.splitlines()[:3]
        return dict(zip(head.split(), row.split()))
    queues = columns(run(handler, "qstat", "-Q").out)
    assert queues == {"Queue": "vrm", "Max": "0", "Tot": "4", "Ena": "yes", "Str": "yes", "Que": "1", "Run": "1", "Hld": "1",
                      "Wat": "0", "Trn": "0", "Ext": "0", "Type": "Exec"}
    assert columns(run(handler, "qstat", "-B").out) == {"Server": "vrm", "Status": "Active", **{
        key: queues[key] for key in ("Max", "Tot", "Que", "Run", "Hld", "Wat", "Trn", "Ext")}}
    count = "state_count = Transit:0 Queued:1 Held:1 Waiting:0 Running:1 Exiting:0 Begun:1"
    for option, first in (("-Qf", "Queue: vrm"), ("-Bf", "Server: vrm")):
        text = run(handler, "qstat", option).out
        assert text.startswith(first) and count in text
    said = run(handler, "qstat", "-q", "vrm").out
    assert said.splitlines()[5].split() == ["vrm", "--", "--", "--", "--", "2", "2", "--", "E", "R"]
    assert said.splitlines()[-1].split() == ["2", "2"]
    assert run(handler, "qstat", "-Q", "x").code == 170 and run(handler, "qstat", "-B", "x").code == 2
    handler.site = replace(handler.site, queues=("long", "short"))
    assert [line.split()[:3] for line in run(handler, "qstat", "-Q").out.splitlines()[2:]] == [
        ["long", "0", "4"], ["short", "0", "0"]]


def test_qselect_qsig_and_qrerun() -> None:
    handler = Counter(a_job(1), a_job(2, JobState.QUEUED), a_job(3, JobState.FAILED), a_job(10, array=10, index=0),
                      a_job(11, array=10, index=4))
    for words_, found in (((), "1 2 10[]"), (("-s", "Q"), "2"), (("-t", "-J"), "10[0] 10[4]"), (("-x", "-N", "solve"), "1 2 3 10[]"),
                          (("-u", "bob"), "")):
        assert run(handler, "qselect", *words_).out.replace(".vrm", "").split() == found.split(), words_
    assert run(handler, "qselect", "-l", "ncpus.gt.1").code == 2
    assert run(handler, "qsig", "-s", "USR1", "1").code == 0 and handler.done.pop() == ("cancel", 1, 10)
    assert run(handler, "qsig", "-s", "NO", "1").code == 2
    assert run(handler, "qrerun", "1.vrm").code == 0 and handler.done.pop()[:2] == ("requeue", 1)


def test_scancel() -> None:
    handler = Counter(a_job(1), a_job(2, JobState.QUEUED), a_job(3, JobState.COMPLETED), a_job(10, array=10, index=0),
                      a_job(11, array=10, index=4))

    def done(*words_: str) -> list[Any]:
        handler.done.clear()
        answer = run(handler, "scancel", *words_)
        assert (answer.out, answer.code) == ("", 0)
        return [each[1] for each in handler.done]
    assert done("1", "2,3") == [1, 2] and done("10") == [10, 11] and done("10_4") == [11]
    assert done("10_[0-4]") == [10, 11] and done("-u", "ann") == [1, 2, 10, 11] and done("-u", "bob") == []
    handler.again = {3}  # it has ended, and is to run again
    assert done("2", "3") == done("-s", "KILL", "2,3") == [2, 3] and done("-s", "USR1", "3") == []
    handler.again.clear()
    assert done("-t", "PD", "--me") == [2] and done("--name=solve", "-p", "vrm") == [1, 2, 10, 11]
    done("--signal=USR1", "1")
    assert handler.done == [("cancel", 1, 10)]
    assert run(handler, "scancel", "-v", "1").err == "scancel: Terminating job 1\n"
    answer = run(handler, "scancel", "99", "1")
    assert answer.code == 1 and "Invalid job id specified" in answer.err
    assert run(handler, "scancel", "-Q", "99") == Answer(code=1)
    for wrong in ([], ["x"], ["-s", "NOSUCH", "1"], ["1.0"]):
        assert run(handler, "scancel", *wrong).err.startswith("scancel: error: "), wrong


def test_many_jobs_are_cancelled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PART", 0.0)
    handler = Counter(*(a_job(number, JobState.QUEUED) for number in range(1, 2 * scancel.MANY + 50)))
    handler.all[7] = a_job(7)
    asked = Call("scancel", ["-v", "-n", "solve"], "/work")
    reply = names.reply_to(asked, handler)
    assert isinstance(reply, DeferredAnswer) and reply.has_work and not handler.done
    assert reply.poll() is None and [each[1] for each in handler.done] == list(range(1, scancel.STEP + 1))
    handler.all[150] = a_job(150, JobState.COMPLETED)  # in the meantime
    polls = 1
    while (answer := reply.poll()) is None:
        polls += 1
    assert polls == len(handler.all) // scancel.STEP + 1 and not reply.has_work and answer.code == 0
    assert [each[1] for each in handler.done] == [number for number in handler.all if number != 150]
    assert len(answer.err.splitlines()) == len(handler.all) - 1
    with pytest.raises(CallRefused, match="Invalid job state"):
        names.reply_to(Call("scancel", ["-t", "nosuch"], "/work"), handler)
    signalled = names.reply_to(Call("scancel", ["-s", "USR1", "-n", "solve"], "/work"), handler)
    handler.done.clear()
    while signalled.has_work:
        assert signalled.poll() is None
    assert handler.done == [("cancel", 7, 10)]
    handler.now += 100
    assert signalled.poll().code == 1
    handler.done.clear()
    killed = names.reply_to(asked, handler)
    assert killed.poll() is None
    killed.gone()  # the client
    assert len(handler.done) == len(handler.all) - 1


def test_a_signal_waits_for_a_job_that_waits() -> None:
    """As scancel of Slurm 22.05 does; KILL cancels it."""
    handler = Counter(a_job(1), a_job(2, JobState.QUEUED), a_job(3, JobState.QUEUED), a_job(4, JobState.QUEUED))
    assert run(handler, "scancel", "-s", "KILL", "2", "1") == Answer()
    assert handler.done == [("cancel", 1, 9), ("cancel", 2, 0)] or handler.done == [("cancel", 2, 0), ("cancel", 1, 9)]
    handler.done.clear()
    waits = names.reply_to(Call("scancel", ["-s", "USR1", "1", "2", "3", "4"], "/work"), handler)
    assert isinstance(waits, DeferredAnswer) and waits.poll() is None and handler.done == [("cancel", 1, 10)]
    handler.all[2] = a_job(2)
    handler.all[3] = a_job(3, JobState.CANCELLED)
    assert waits.poll() is None and handler.done.pop() == ("cancel", 2, 10)
    handler.now += 100
    answer = waits.poll()
    assert answer is not None and answer.code == 1 and "job id 4: Job can not be altered now" in answer.err
    assert len(answer.err.splitlines()) == 1 and len(handler.done) == 1


def test_what_a_job_waits_for() -> None:
    waits = (Dependency(range(1, 3), ANY), Dependency.on(3, OK))
    job = a_job(9, JobState.QUEUED, why=front.DEPENDENCY, waits=waits, fields={"singleton": "1-2"})
    assert state_names.dependency(job) == "singleton(unfulfilled),afterok:3(unfulfilled)"
    limited = a_job(9, JobState.QUEUED, why=front.LIMIT, waits=(Dependency.on(7, ANY),), array=7, fields={
        "throttle": 2, "variables": {"SLURM_ARRAY_TASK_COUNT": "3"}})
    assert (state_names.dependency(limited), state_names.reason(limited)) == ("(null)", "JobArrayTaskLimit")
    head, row = run(Counter(job), "squeue", "-o", "%all").out.splitlines()
    assert head.startswith("ACCOUNT|TRES_PER_NODE|MIN_CPUS|") and len(head.split("|")) == len(row.split("|")) > 45
    assert dict(zip(head.split("|"), row.split("|")))["ST"] == "PD"


def test_what_answers_nothing() -> None:
    for command in ("sacctmgr show account -n", "sshare -U", "sprio"):
        assert run(Counter(), *command.split()) == Answer()
    assert run(Counter(), "sacctmgr", "add", "user", "x").code == 1


def test_paths_are_seen_from_where_the_command_is_typed() -> None:
    assert asked("-D", "sub/..", "job.sh").values["directory"] == "/work"
    assert asked("-D", "/tmp", "job.sh").values["directory"] == "/tmp"
    assert os.path.isabs(asked("../x/job.sh").values["file"])
