"""Configuration files: what is accepted, what each mistake is answered with, and that nothing
but ConfigError ever comes out."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from string import ascii_letters

import pytest
import yaml
from conftest import permissions_obeyed
from hypothesis import example, given, settings as hypothesis_settings, strategies as st

from vrm.config.problems import ConfigError, Problem
from vrm.config.schema import Memory, Settings, dump, load

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "config"

DEFAULTS = {
    "Version": "1.0",
    "Applications": {"Path": ".", "Queue": "queue", "Heatmap": None, "RunIn": None,
                     "Programs": {}, "Any": False, "Malleable": []},
    "Scheduling": {
        "Algorithm": "FCFS",
        "Backfilling": "easy",
        "Interval": 0.0,
        "StartsPerInterval": 0,
        "Estimates": "requested",
        "Correction": "request",
        "Reestimate": False,
        "BackfillOrder": "queue",
        "Events": "instant",
        "Calibrated": None,
        "History": [],
        "Objective": "makespan",
    },
    "Starvation": {"Factor": 0.0},
    "Sharing": {"MalleableShare": 0.0, "MalleableSeed": 1, "SharedSpeed": "ideal"},
    "Hosts": {"File": None, "Reach": "auto", "Timeout": 10.0, "Steps": "shared",
              "Quarantine": "suggest"},
    "Nodes": "auto",
    "Sockets": "auto",
    "Cores": "auto",
    "Threads": 1,
    "Emulate": False,
    "NodeClasses": [],
    "Licences": {},
    "Queues": {},
    "Allocation": {"Policy": "pack", "MinThroughput": 1.0, "NodeOrder": "auto"},
    "Walltime": "warn",
    "Memory": {"Over": "warn"},
    "Output": {"Archive": False},
    "Grace": 10.0,
    "End": {"At": "auto", "Margin": 60.0, "Fit": True},
    "Interrupted": "requeue",
    "Retries": 0,
    "OnStop": "kill",
    "Log": "logs",
    "State": "logs/state",
    "Directory": "logs",
    "Launcher": {
        "Kind": "auto",
        "Mpirun": "auto",
        "AllowRoot": False,
        "Transport": "auto",
        "Options": [],
        "CheckBindings": "warn",
        "Stamp": False,
        "Environment": {},
    },
    "Trust": "own",
    "Replay": {"Speed": 1.0},
    "Extensions": {},
    "Energy": {"Database": None, "Frequency": True},
    "PowerCap": "",
    "Forecast": True,
    "Learning": {"Store": "auto"},
    "Slurm": {"DefaultTime": 3600.0},
}
PATHS = ["Applications.Path", "Applications.Queue", "Log", "State", "Directory"]


def flat(mapping, prefix=""):
    """{"A": {"B": 1}} as {"A.B": 1}, groups of keys included."""
    result = {}
    for key, value in mapping.items():
        result[prefix + key] = value
        if isinstance(value, dict):
            result.update(flat(value, f"{prefix}{key}."))
    return result


ALL_KEYS = list(flat(DEFAULTS))
TOP = ", ".join(DEFAULTS)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write x.yaml into an empty directory, which becomes the current one."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "x.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        return "x.yaml"

    return write


def complaints(file):
    with pytest.raises(ConfigError) as caught:
        load(file)
    return str(caught.value).split("\n")


def attribute(settings, dotted):
    for name in dotted.split("."):
        settings = getattr(settings, name)
    return settings


# ------------------------------------------------------------------------------------ defaults


def test_no_file_gives_the_defaults_relative_to_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = flat(DEFAULTS)
    for key in PATHS:
        expected[key] = os.path.abspath(expected[key])
    expected["Allocation.Policy"] = "pack"  # nobody has said otherwise
    found = flat(dump(load(None)))
    assert {key: value for key, value in found.items() if not isinstance(value, dict)} == {
        key: value for key, value in expected.items() if not isinstance(value, dict)
    }
    assert list(found) == ALL_KEYS


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "# nothing\n", "---\n", "null\n", "\ufeff", "\t\n", "Launcher:\n", "Replay: {}"]
    + ["Launcher:\n  Options:\n  Environment:\n", "Applications:\n  Heatmap:\n"],
)
def test_a_file_with_nothing_in_it_means_the_defaults(write, text):
    settings, without = load(write(text)), load(None)
    assert settings.allocation.policy == "pack" and settings.scheduling.backfilling == "easy"
    assert settings == without


def test_the_defaults_of_files_in_log_follow_log_and_state(write, tmp_path):
    settings = load(write("Log: a"))
    assert (settings.state, settings.directory) == (tmp_path / "a" / "state", tmp_path / "a")
    settings = load(write("Log: a\nState: b/c"))
    assert (settings.state, settings.directory) == (tmp_path / "b" / "c", tmp_path / "b")
    settings = load(write("State: b/c\nDirectory: d"))
    assert (settings.log, settings.directory) == (tmp_path / "logs", tmp_path / "d")


def test_settings_cannot_be_changed_and_can_be_sent_to_another_process(write):
    settings = load(write("Nodes: 8"))
    for part, name in [(settings, "nodes"), (settings.scheduling, "algorithm")]:
        with pytest.raises(ValueError, match="frozen"):
            setattr(part, name, "auto")
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings and copy.where("Nodes") == "x.yaml:1"


# --------------------------------------------------------------------------- what is accepted

ORIGINAL = """\
Version: 1.0

Applications:
  Path: /srv/user/NPB3.4/bin
  Queue: /srv/user/queue\t
  Heatmap: /srv/user/heatmap\t\t#\tstrip only
\t
\t# a comment behind a tab
Scheduling:
  Algorithm: FCFS
  Backfilling : 0 \t# spaces and tabs

Nodes: 8
Sockets:\t2
Cores: "4"

Allocation:
  Policy: compact

Log : /srv/user/log/fcfs

State: /srv/user/state
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_founding_works_file_is_read_unchanged(write, newline):
    settings = load(write(ORIGINAL.replace("\n", newline)))
    assert settings.version == "1.0"
    assert settings.applications.path == Path("/srv/user/NPB3.4/bin")
    assert settings.applications.queue == Path("/srv/user/queue")
    assert settings.applications.heatmap == Path("/srv/user/heatmap")
    assert settings.scheduling.algorithm == "FCFS"
    assert settings.scheduling.backfilling == "none"
    assert (settings.nodes, settings.sockets, settings.cores) == (8, 2, 4)
    assert settings.allocation.policy == "compact"
    assert settings.log == Path("/srv/user/log/fcfs")
    assert settings.state == Path("/srv/user/state")
    assert settings.directory == Path("/srv/user")
    assert settings.where("State") == "x.yaml:22"


@pytest.mark.parametrize(
    "text, name, value",
    [
        ("Version: 1", "version", "1"),
        ("Version: 1.10", "version", "1.10"),
        ('Version: "1.0"', "version", "1.0"),
        ("Nodes: AUTO", "nodes", "auto"),
        ('Nodes: " 8 "', "nodes", 8),
        ("Nodes: 010", "nodes", 10),
        ("Emulate: yes", "emulate", True),
        ("Emulate: 0", "emulate", False),
        ("Emulate: 'False'", "emulate", False),
        ("Walltime: Kill", "walltime", "kill"),
        ("Memory: {Over: off}", "memory", Memory(Over="off")),
        ("Memory: {Over: Kill}", "memory", Memory(Over="kill")),
        ("Grace: 0", "grace", 0.0),
        ("Grace: 2.5", "grace", 2.5),
        ("Grace: 1e1", "grace", 10.0),
        ("OnStop: wait", "on_stop", "wait"),
        ("Forecast: off", "forecast", False),
        ("OnStop: Requeue", "on_stop", "requeue"),
        ("End: {At: NEVER}", "end.at", "never"),
        ("End: {At: 90}", "end.at", 90.0),
        ("End: {At: 1:30:05}", "end.at", 5405.0),
        ("End: {Fit: no, Margin: 5}", "end.fit", False),
        ("Interrupted: Mark", "interrupted", "mark"),
        ("Retries: 3", "retries", 3),
        ("Trust: ANY", "trust", "any"),
        ("Scheduling: {Algorithm: (q / t)**3 * n}", "scheduling.algorithm", "(q / t)**3 * n"),
        ("Scheduling: {Algorithm: mine.orders:area}", "scheduling.algorithm", "mine.orders:area"),
        ("Scheduling: {Algorithm: -1}", "scheduling.algorithm", "-1"),
        ("Allocation: {Policy: no}", "allocation.policy", "no"),
        ("Launcher: {AllowRoot: on}", "launcher.allow_root", True),
        ("Hosts: {Reach: SSH}", "hosts.reach", "ssh"),
        ("Hosts: {Reach: [My, -p, 22]}", "hosts.reach", ("My", "-p", "22")),
        ("Hosts: {Timeout: 2.5}", "hosts.timeout", 2.5),
        ("Hosts: {Steps: Each}", "hosts.steps", "each"),
        ("Hosts: {Quarantine: on}", "hosts.quarantine", "on"),
        ("Hosts: {Quarantine: off}", "hosts.quarantine", "off"),
        ("Applications: {Heatmap: learned}", "applications.heatmap", Path("learned")),
        ("Launcher: {Transport: site}", "launcher.transport", "site"),
        ("Launcher: {CheckBindings: fail}", "launcher.check_bindings", "fail"),
        ("Launcher: {Options: [-x, 010, yes, '']}", "launcher.options", ("-x", "010", "yes", "")),
        (
            "Launcher: {Environment: {A: 1.10, B: no, C: '', D: $HOME}}",
            "launcher.environment",
            {"A": "1.10", "B": "no", "C": "", "D": "$HOME"},
        ),
        ("Replay: {Speed: 100}", "replay.speed", 100.0),
        ("Replay: &fast {Speed: 2}\nAllocation: {Policy: &p strip}", "replay.speed", 2.0),
    ],
)
def test_values_that_are_accepted(write, text, name, value):
    found = attribute(load(write(text)), name)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "spellings, value",
    [
        ("0 false False no off none None 'none'", "none"),
        ("1 true yes easy EASY", "easy"),
        ("conservative Conservative", "conservative"),
        ("2 '2' 02", 2),
        ("100", 100),
    ],
)
def test_backfilling_has_many_spellings(write, spellings, value):
    for spelling in spellings.split():
        found = load(write(f"Scheduling: {{Backfilling: {spelling}}}")).scheduling.backfilling
        assert found == value and type(found) is type(value), spelling


@pytest.mark.parametrize("text", ["sd max_slowdown=5 reservations=all", "eamc weight=2", "cp jobs=50", "3-kept", "sd"])
def test_a_backfilling_may_have_parameters(write, text):
    assert load(write(f"Scheduling: {{Backfilling: {text}}}")).scheduling.backfilling == text


def test_settings_can_be_made_by_a_program_too():
    settings = Settings.model_validate({"Nodes": 4, "Scheduling": {"Backfilling": False}})
    assert (settings.nodes, settings.scheduling.backfilling) == (4, "none")
    assert settings.where("Nodes") == "built-in defaults"


# ---------------------------------------------------------------------------------------- paths


def test_paths_are_relative_to_the_files_directory(tmp_path, monkeypatch):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "x.yaml").write_text(
        "Applications: {Path: ../npb/bin, Queue: q, Heatmap: ./h}\n"
        "Log: /abs//log/.\nLauncher: {Mpirun: ../bin/mpirun}"
    )
    monkeypatch.chdir("/")
    settings = load(tmp_path / "config" / "x.yaml")
    assert settings.applications.path == tmp_path / "npb" / "bin"
    assert settings.applications.queue == tmp_path / "config" / "q"
    assert settings.applications.heatmap == tmp_path / "config" / "h"
    assert settings.log == Path("/abs/log")
    assert settings.launcher.mpirun == str(tmp_path / "bin" / "mpirun")
    monkeypatch.chdir(tmp_path)
    assert load("config/x.yaml") == settings
    assert load(b"config/x.yaml") == settings


@pytest.mark.parametrize(
    "written, path",
    [
        ("~", "/home/me"),
        ("~/log", "/home/me/log"),
        ("a~", "BASE/a~"),
        ("$WORK/log", "/work/me/log"),
        ("${WORK}log", "/work/melog"),
        ("$REL/log", "BASE/some/where/log"),
        ("/a/$REL/$REL", "/a/some/where/some/where"),
        ("/a/$$WORK", "/a/$WORK"),
        ("/a/$-b", "/a/$-b"),
        ("/a/b$", "/a/b$"),
        ("/a b/c#d", "/a b/c#d"),
        ("'/a/b '", "/a/b "),
        ("2024", "BASE/2024"),
    ],
)
def test_home_and_variables_are_filled_in(write, tmp_path, monkeypatch, written, path):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("WORK", "/work/me")
    monkeypatch.setenv("REL", "some/where")
    expected = path.replace("BASE", str(tmp_path))
    settings = load(write(f"Log: {written}"))
    assert settings.log == Path(expected)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    (copy / "y.yaml").write_text(yaml.safe_dump(dump(settings)))
    assert load(copy / "y.yaml") == settings


@pytest.mark.parametrize(
    "written, found",
    [
        ("auto", "auto"),
        ("Auto", "auto"),
        ("mpirun.openmpi", "mpirun.openmpi"),
        ("./mpirun", "BASE/mpirun"),
        ("$MPI_BIN/mpirun", "/opt/mpi/bin/mpirun"),
        ("$MPI_NAME", "mpiexec"),
    ],
)
def test_mpirun_is_auto_a_name_or_a_path(write, tmp_path, monkeypatch, written, found):
    monkeypatch.setenv("MPI_BIN", "/opt/mpi/bin")
    monkeypatch.setenv("MPI_NAME", "mpiexec")
    settings = load(write(f"Launcher: {{Mpirun: {written}}}"))
    assert settings.launcher.mpirun == found.replace("BASE", str(tmp_path))


# ------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "text, expected",
    [
        # keys
        (
            "Scheduling:\n  Algoritm: FCFS",
            "2: Scheduling.Algoritm: unknown key; did you mean Algorithm?",
        ),
        ("Node: 8", "1: Node: unknown key; did you mean Nodes?"),
        ("nodes: 8", "1: nodes: unknown key; upper and lower case matter: write Nodes"),
        ("Algorithm: FCFS", "1: Algorithm: unknown key; it belongs under Scheduling"),
        ("Scheduling: {Nodes: 8}", "1: Scheduling.Nodes: unknown key; it belongs at the top level"),
        ("allow_root: 1", "1: allow_root: unknown key; did you mean Launcher.AllowRoot?"),
        ("Quux: 8", f"1: Quux: unknown key; the keys at the top level are {TOP}"),
        (
            "Queues: {debug: {MaxJobs: 8}}",
            "1: Queues.debug.MaxJobs: unknown key; the keys of Queues are Default, Priority, "
            "ExpectedWait, MaxRunning, MaxCores, MaxRunningPerUser, MaxCoresPerUser, Nodes, "
            "CoresPerNode, MaxWalltime, DefaultWalltime",
        ),
        (
            "Queues:\n  a: {Default: true}\n  b: {Default: true}",
            "1: Queues: a and b are both the default; jobs without queue= go to one queue; keep one "
            "Default: true",
        ),
        (
            "Queues: {a: {ExpectedWait: soon}}",
            '1: Queues.a.ExpectedWait: found "soon", wanted seconds above 0, or a time as 90m '
            "or 1:30:00; for example ExpectedWait: 1h",
        ),
        (
            "Queues: {a: {MaxRunning: -1}}",
            '1: Queues.a.MaxRunning: found "-1", wanted a whole number, 0 (no limit) or more; for '
            "example MaxRunning: 4",
        ),
        (
            "Allocation: {x: 8}",
            "1: Allocation.x: unknown key; the keys of Allocation are Policy, MinThroughput, "
            "NodeOrder",
        ),
        ('"a\\tb\\e[1m": 8', f"1: a\\tb\\x1b[1m: unknown key; the keys at the top level are {TOP}"),
        (
            "Nodes: 8\nLog: a\nNodes: 9",
            "3: Nodes: written twice, first in line 1; keep one of them",
        ),
        (
            "Replay:\n  Speed: 1\n\n  Speed: 1",
            "4: Replay.Speed: written twice, first in line 2; keep one of them",
        ),
        ("? [a]\n: 8", "1: a key must be plain text; write Key: value"),
        ("Launcher: {{a: 1}: 8}", "1: Launcher: a key must be plain text; write Key: value"),
        ("'[key]': 1", f"1: [key]: unknown key; the keys at the top level are {TOP}"),
        # the wrong sort of thing
        ("- Nodes: 8", "1: found a list, wanted keys with values; for example Nodes: 8"),
        ("\nNodes", "2: found text, wanted keys with values; for example Nodes: 8"),
        (
            "Allocation: compact",
            '1: Allocation: found "compact", wanted a group of keys;'
            " for example Allocation: {Policy: compact}",
        ),
        (
            "Scheduling: [FCFS]",
            "1: Scheduling: found a list, wanted a group of keys;"
            " for example Scheduling: {Algorithm: FCFS}",
        ),
        (
            "Scheduling:\n  Algorithm: [FCFS]",
            "2: Scheduling.Algorithm: found a list, wanted text; for example Algorithm: FCFS",
        ),
        ("Log:", "1: Log: found nothing, wanted a path; for example Log: ../demo/name"),
        ("Log: ' '", '1: Log: found " ", wanted a path; for example Log: ../demo/name'),
        (
            "Log: {a: b}",
            "1: Log: found a group of keys, wanted a path; for example Log: ../demo/name",
        ),
        (
            "Allocation: {Policy: ''}",
            '1: Allocation.Policy: found "", wanted text; for example Policy: pack',
        ),
        (
            "Launcher: {Mpirun: }",
            "1: Launcher.Mpirun: found nothing, wanted auto or the path of a program;"
            " for example Mpirun: /opt/openmpi/bin/mpirun",
        ),
        (
            "Hosts:\n  Reach: [ssh, [a]]",
            "2: Hosts.Reach: found a list, wanted auto, flux, srun, ssh, or a list: the words of a"
            ' program instead of ssh; for example Reach: [ssh, -p, "2222"]',
        ),
        (
            "Launcher:\n  Options: -x",
            '2: Launcher.Options: found "-x", wanted a list;'
            ' for example Options: ["--mca", "btl", "self,tcp"]',
        ),
        (
            "Launcher:\n  Options:\n    - -x\n    - [a]",
            "4: Launcher.Options: entry 2: found a list, wanted text;"
            ' for example Options: ["--mca", "btl", "self,tcp"]',
        ),
        (
            "Launcher: {Environment: [A, 1]}",
            "1: Launcher.Environment: found a list, wanted names with their values;"
            " for example Environment: {OMP_NUM_THREADS: 4}",
        ),
        (
            "Launcher:\n  Environment:\n    A: 1\n    B:",
            "4: Launcher.Environment.B: found nothing, wanted text or a number"
            ' ("" for an empty one); for example B: 4',
        ),
        (
            "Launcher:\n  Environment:\n    A=1: 2",
            '3: Launcher.Environment.A=1: found "A=1", wanted the name of a variable;'
            " for example Environment: {OMP_NUM_THREADS: 4}",
        ),
        # values
        (
            "Nodes: many",
            '1: Nodes: found "many", wanted auto or a whole number from 1 to 1000000; for example Nodes: 8',
        ),
        (
            "Cores: 0",
            '1: Cores: found "0", wanted auto or a whole number from 1 to 1000000; for example Cores: 8',
        ),
        (
            "Sockets: 1.5",
            '1: Sockets: found "1.5", wanted auto or a whole number from 1 to 1000000;'
            " for example Sockets: 8",
        ),
        (
            "Nodes: " + 5000 * "9",
            f'1: Nodes: found "{57 * "9"}...", wanted auto or a whole number from 1 to 1000000;'
            " for example Nodes: 8",
        ),
        (
            "Emulate: maybe",
            '1: Emulate: found "maybe", wanted true or false; for example Emulate: true',
        ),
        ("Grace: -1", '1: Grace: found "-1", wanted seconds, 0 or more, or a time as 90m or 1:30:00; for example Grace: 10'),
        ("Grace: 1:30", '1: Grace: found "1:30", wanted seconds, 0 or more, or a time as 90m or 1:30:00; for example Grace: 10'),
        ("Grace: nan", '1: Grace: found "nan", wanted seconds, 0 or more, or a time as 90m or 1:30:00; for example Grace: 10'),
        (
            "Grace: 1e999",
            '1: Grace: found "1e999", wanted seconds, 0 or more, or a time as 90m or 1:30:00; for example Grace: 10',
        ),
        (
            "Replay: {Speed: 0}",
            '1: Replay.Speed: found "0", wanted a number above 0; for example Speed: 2.5',
        ),
        (
            "Replay: {Speed: inf}",
            '1: Replay.Speed: found "inf", wanted a number above 0; for example Speed: 2.5',
        ),
        (
            "Scheduling: {Backfilling: -1}",
            '1: Scheduling.Backfilling: found "-1", wanted none (0), easy (1), conservative, list, sd, eamc, cp,'
            " module:function, or a number of reservations from 2 up; for example Backfilling: easy",
        ),
        (
            "Scheduling: {Backfilling: {sd: 2}}",
            "1: Scheduling.Backfilling: found a group of keys, wanted none (0), easy (1), conservative, list, sd, eamc, cp,"
            " module:function, or a number of reservations from 2 up; for example Backfilling: easy",
        ),
        (
            "Memory: {Over: no}",
            '1: Memory.Over: found "no", wanted warn, kill or off; for example Over: warn',
        ),
        (
            "Walltime: wrn",
            '1: Walltime: found "wrn", wanted warn, kill or ignore; for example Walltime: warn',
        ),
        ("End: {At: 1:99}", '1: End.At: found "1:99", wanted auto, never, or a time from the '
         "start: seconds, 90m, 2h or 1:30:00; for example At: 02:00:00"),
        ("End: {At: 0}", '1: End.At: found "0", wanted auto, never, or a time from the '
         "start: seconds, 90m, 2h or 1:30:00; for example At: 02:00:00"),
        ("Retries: -1", '1: Retries: found "-1", wanted a whole number, 0 or more; for example '
         "Retries: 1"),
        ("Trust: all", '1: Trust: found "all", wanted own, group or any; for example Trust: own'),
        ("OnStop: 3", '1: OnStop: found "3", wanted kill, wait or requeue; for example OnStop: requeue'),
        (
            "Version: 2.0",
            '1: Version: found "2.0", wanted a version that this vrm reads, 1 or 1.x;'
            " for example Version: 1.0",
        ),
        (
            "Version: one",
            '1: Version: found "one", wanted a version that this vrm reads, 1 or 1.x;'
            " for example Version: 1.0",
        ),
        # paths
        (
            "Log: $VRM_TEST_UNSET/a",
            "1: Log: the variable $VRM_TEST_UNSET is not set, or empty;"
            " set it before vrm starts, or write the path out",
        ),
        (
            "State: /a/${VRM_TEST_EMPTY}",
            "1: State: the variable ${VRM_TEST_EMPTY} is not set, or empty;"
            " set it before vrm starts, or write the path out",
        ),
        (
            "Log: ~vrm-test-nobody/a",
            "1: Log: no home directory found for ~vrm-test-nobody; write the path out",
        ),
        (
            'Log: "a\\0b"',
            "1: Log: contains a character that no path or argument can hold; remove it",
        ),
        # tags
        (
            "Nodes: !int 8",
            "1: Nodes: !int is a tag, and none has a meaning here;"
            " put the value in quotes, or remove the tag",
        ),
    ],
)
def test_each_mistake_has_its_answer(write, monkeypatch, text, expected):
    monkeypatch.setenv("VRM_TEST_EMPTY", "")
    assert complaints(write(text)) == [f"x.yaml:{expected}"]


@pytest.mark.parametrize("key", ALL_KEYS)
def test_every_key_is_known_in_its_place_only_and_in_its_case_only(write, key):
    group, _, name = key.rpartition(".")
    wrong = f"{group}.{name.upper()}" if group else name.upper()
    text = f"{group}:\n  {name.upper()}: x" if group else f"\n{name.upper()}: x"
    assert complaints(write(text)) == [
        f"x.yaml:2: {wrong}: unknown key; upper and lower case matter: write {name}"
    ]
    other = "Replay" if group != "Replay" else "Launcher"
    place = f"under {group}" if group else "at the top level"
    assert complaints(write(f"{other}:\n  {name}: x")) == [
        f"x.yaml:2: {other}.{name}: unknown key; it belongs {place}"
    ]


def test_all_mistakes_are_told_at_once_in_the_files_order(write):
    text = """\
Scheduling:
  Backfilling: maybe
  Algoritm: FCFS
Nodes: 0
Nodes: 8
Log: [a]        # State and Directory, which follow from it, are no mistakes of their own
Walltime: kill
Replay: {Speed: fast, Sped: 2}
"""
    with pytest.raises(ConfigError) as caught:
        load(write(text))
    keys = [(problem.line, problem.key) for problem in caught.value.problems]
    assert keys == [
        (2, "Scheduling.Backfilling"),
        (3, "Scheduling.Algoritm"),
        (4, "Nodes"),
        (5, "Nodes"),
        (6, "Log"),
        (8, "Replay.Speed"),
        (8, "Replay.Sped"),
    ]
    assert str(caught.value).count("\n") == 6


@pytest.mark.parametrize(
    "text, line, column, message",
    [
        ("Log: a\nReplay:\n\tSpeed: 1", 3, 1, "a tab is used to indent; indent with spaces"),
        ("Replay:\n  Speed: 1\n \tSpeed: 2", 3, 2, "a tab is used to indent; indent with spaces"),
        (
            "Log: a: b",
            1,
            7,
            "a key and its colon are out of place; indent the keys of a group alike, "
            "end every key with a colon, and put a value that contains ': ' in quotes",
        ),
        (
            "Log: a\n  State: b",
            2,
            8,
            "a key and its colon are out of place; indent the keys of a group "
            "alike, end every key with a colon, and put a value that contains ': ' in quotes",
        ),
        (
            "Replay:\n  Speed: 1\n Sped: 2",
            3,
            2,
            "this line does not go with the lines above; "
            "indent the keys of a group alike; a group is either keys or a list",
        ),
        (
            "Nodes: 1\n- a",
            2,
            1,
            "this line does not go with the lines above; "
            "indent the keys of a group alike; a group is either keys or a list",
        ),
        ("Nodes: 1\nLog\n", 2, 1, "a key without a colon; write Key: value"),
        ("Log: 'a\nState: b\n", 1, 6, "the quote that opens here is never closed; close it"),
        ('Log: "a\nState: b\n', 1, 6, "the quote that opens here is never closed; close it"),
        (
            "Replay: {Speed: 1\nLog: a\n",
            1,
            9,
            "the bracket that opens here is never closed; close it, or put the value in quotes",
        ),
        (
            "Log: [a}",
            1,
            6,
            "the bracket that opens here is never closed; close it, or put the value in quotes",
        ),
        (
            "Log: ]",
            1,
            6,
            "a bracket, comma or colon is where a value should be; put the value in quotes",
        ),
        (
            "Scheduling:\n  Algorithm: *q",
            2,
            14,
            "a value that begins with * is the name of an anchor, and this anchor does not exist;"
            " put the value in quotes",
        ),
        (
            "Scheduling:\n  Algorithm: - t",
            2,
            14,
            "a value cannot begin with '- '; put the value in quotes",
        ),
        ("Log: @a", 1, 6, "a value cannot begin with this character; put the value in quotes"),
        (
            'Log: "\\q"',
            1,
            8,
            "double quotes give the backslash a meaning, and this one has none; use single quotes",
        ),
        (
            'Log: "a" b',
            1,
            10,
            "there is more behind the end of the value; "
            "put the whole value in one pair of quotes",
        ),
        ("Nodes: 1\n---\nNodes: 2", 2, 1, "a second document begins here; keep one, without '---'"),
        ("Nodes: 1\nLog: a\x07b", 2, 7, "character U+0007 is not allowed there; remove it"),
        (
            "Log: &a 1\nState: &a 2",
            2,
            8,
            "found duplicate anchor 'a'; first occurrence: second occurrence",
        ),
    ],
)
def test_what_is_not_yaml_is_told_with_line_and_column(write, text, line, column, message):
    assert complaints(write(text)) == [
        f"x.yaml:{line}: not valid YAML at column {column}: {message}"
    ]


@pytest.mark.slow
def test_deep_nesting_is_refused(write):
    expected = ["x.yaml: nested too deeply; no setting needs more than four levels"]
    assert complaints(write("Log: " + 2000 * "[")) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Launcher: &a\n  Options: *a",
        "Launcher:\n  Environment: &a\n    B: *a",
        "Launcher: {Options: &a [*a, *a]}",
        "&a x: *a",
    ],
)
def test_anchors_that_hold_themselves_end_in_a_complaint(write, text):
    assert all(line.startswith("x.yaml:") for line in complaints(write(text)))


# ---------------------------------------------------------------------------------------- files


def test_a_missing_file(write):
    write("")
    Path("strip.yaml").touch()
    assert complaints("Strap.yaml") == ["Strap.yaml: no such file; did you mean strip.yaml?"]
    assert complaints("./strip.yml") == ["./strip.yml: no such file; did you mean ./strip.yaml?"]
    assert complaints("quite/other") == [
        "quite/other: no such file; the directory is not there either; check the path"
    ]
    assert complaints("unlike-all") == ["unlike-all: no such file; check the path"]


@pytest.mark.parametrize(
    "name, expected",
    [
        (".", ".: is a directory; name a YAML file inside it"),
        ("x.yaml/y", "x.yaml/y: not a directory; check the path"),
        ("a\0b", "a\\x00b: no file can have this name; check the path"),
        (300 * "a", 300 * "a" + ": file name too long; check the path"),
    ],
)
def test_what_is_not_a_file(write, name, expected):
    write("")
    assert complaints(name) == [expected]


def test_a_file_that_may_not_be_read(write):
    os.chmod(write("Nodes: 8"), 0)
    with permissions_obeyed():
        found = complaints("x.yaml")
    assert found == ["x.yaml: permission denied; make it readable, for example with chmod u+r"]


def test_a_file_in_another_encoding(write):
    file = write("Nodes: 8\nLog: gr\u00fcn".encode("latin-1"))
    expected = ["x.yaml:2: not UTF-8 text; save the file with the encoding UTF-8"]
    assert complaints(file) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", []),
        (
            "Applications: {Path: none}",
            ["1: Applications.Path: BASE/none: no such file or directory"],
        ),
        ("Applications: {Path: file}", ["1: Applications.Path: BASE/file is not a directory"]),
        ("Applications: {Queue: none}", []),
        ("Applications: {Queue: no/ne}", []),
        ("Applications: {Queue: dir}", ["1: Applications.Queue: BASE/dir is not a file"]),
        (
            "Applications: {Heatmap: none}",
            ["1: Applications.Heatmap: BASE/none: no such file or directory"],
        ),
        ("Applications: {RunIn: file}", ["1: Applications.RunIn: BASE/file is not a directory"]),
        ("Applications: {Heatmap: dir}", ["1: Applications.Heatmap: BASE/dir is not a file"]),
        ("Applications: {Heatmap: file}", []),
        ("Log: none", []),
        ("Log: dir", []),
        ("Log: file\nState: state", ["1: Log: BASE/file is not a directory"]),
        ("State: dir", ["1: State: BASE/dir is not a file"]),
        ("Log: dir\nDirectory: file", ["2: Directory: BASE/file is not a directory"]),
        ("Directory: broken", ["1: Directory: BASE/broken: no such file or directory"]),
        ("Launcher: {Mpirun: none}", []),
        (
            "Launcher: {Mpirun: ./none}",
            ["1: Launcher.Mpirun: BASE/none: no such file or directory"],
        ),
        (
            "Launcher: {Mpirun: ./file}",
            ["1: Launcher.Mpirun: BASE/file is not an executable program"],
        ),
        (
            "Launcher: {Mpirun: ./dir}",
            ["1: Launcher.Mpirun: BASE/dir is not an executable program"],
        ),
        ("Launcher: {Mpirun: ./program}", []),
        (
            "Applications:\n  Path: none\n  Heatmap: none",
            [
                "2: Applications.Path: BASE/none: no such file or directory",
                "3: Applications.Heatmap: BASE/none: no such file or directory",
            ],
        ),
        (
            "Applications: {Queue: file}\nState: dir/../file",
            ["2: State: BASE/file is the file of Applications.Queue, too, and would be replaced"],
        ),
    ],
)
def test_files_that_are_named_are_checked_when_asked(write, tmp_path, text, expected):
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "program").touch(mode=0o700)
    (tmp_path / "broken").symlink_to("nowhere")
    found = [str(problem) for problem in load(write(text)).check_files()]
    mend = "; correct the path, or make what it names"
    assert found == [f"x.yaml:{line.replace('BASE', str(tmp_path))}{mend}" for line in expected]


# -------------------------------------------------------------------------------- where it stood


def test_settings_tell_where_a_key_was_written(write):
    settings = load(write("# first\nScheduling:\n\n  Algorithm: FCFS\nNodes: 8"))
    assert settings.where("Scheduling.Algorithm") == "x.yaml:4"
    assert settings.where("Scheduling") == "x.yaml:2"
    assert settings.where("Nodes") == "x.yaml:5"
    assert settings.where("Scheduling.Backfilling") == "x.yaml"
    assert load(None).where("Nodes") == "built-in defaults"


def test_problems_found_elsewhere_look_the_same(write):
    settings = load(write("Scheduling: {Algorithm: FCSF}"))
    problem = settings.problem("Scheduling.Algorithm", "unknown algorithm", "did you mean FCFS?")
    assert str(problem) == ("x.yaml:1: Scheduling.Algorithm: unknown algorithm; did you mean FCFS?")
    assert str(load(None).problem("Nodes", "too many")) == "built-in defaults: Nodes: too many"
    error = ConfigError([problem, Problem("y.yaml", None, "", "no such file")])
    assert str(error).split("\n")[1] == "y.yaml: no such file"
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


# ----------------------------------------------------------------------------------- the examples


def test_the_reference_shows_every_key_with_its_default(tmp_path):
    text = (EXAMPLES / "reference.yaml").read_text()
    (tmp_path / "reference.yaml").write_text(text)
    (tmp_path / "empty.yaml").touch()
    settings = load(tmp_path / "reference.yaml")
    assert settings == load(tmp_path / "empty.yaml")
    lines = text.splitlines()
    for key in ALL_KEYS:
        line = settings.where(key).rsplit(":", 1)[1]
        comment = lines[int(line) - 2].strip()
        assert comment.startswith("# ") and comment.endswith("."), key


@pytest.mark.parametrize(
    "name, policy, algorithm",
    [("compact", "compact", "FCFS"), ("strip", "strip", "FCFS"), ("spare", "spare", "FCFS")],
)
def test_the_examples_are_right(name, policy, algorithm):
    settings = load(EXAMPLES / f"{name}.yaml")
    top = EXAMPLES.parent
    assert settings.allocation.policy == policy
    assert settings.scheduling.algorithm == algorithm
    assert settings.applications.path == top / "npb" / "bin"
    assert settings.applications.queue.parent == top / "queues"
    assert settings.log == settings.directory == top / "logs" / name
    assert settings.state == top / "logs" / name / "state"
    # The programs are built later; all else that is named must be there.
    assert {problem.key for problem in settings.check_files()} <= {"Applications.Path"}


@pytest.mark.slow
def test_importing_is_cheap():
    program = "import sys, vrm.config.schema; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    loaded = {name.split(".")[0] for name in output.split()}
    assert "pydantic" in loaded
    assert not loaded & {"numpy", "matplotlib", "psutil", "prettytable"}


# ------------------------------------------------------------------------------- on random input

RANDOM = hypothesis_settings(deadline=None, max_examples=150)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.dates()
    | st.binary(max_size=5)
    | st.sampled_from(["auto", "none", "~", "~x", "$", "$$", "${", "$A", "../a", "1:30", "1.0"])
)
names = st.sampled_from([key.split(".")[-1] for key in ALL_KEYS])
keys = names | names.map(str.lower) | st.text(max_size=5) | st.integers() | st.none()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("random")


def outcome(file, text):
    """Load the text; whatever is wrong with it must be told in readable lines with a place."""
    file.write_bytes(text.encode())
    try:
        return load(file)
    except ConfigError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.message and problem.file == str(file)
            assert problem.line is None or problem.line >= 1
            assert str(problem).isprintable()
        return error


@RANDOM
@given(mapping=st.dictionaries(keys, values))
@example(mapping={"Log": "\ud800", "\ud800": 1, "Launcher": {"Environment": {"\udfff": "\0"}}})
@pytest.mark.slow
def test_any_mapping_gives_settings_or_a_config_error(scratch, mapping):
    result = outcome(scratch / "mapping.yaml", yaml.safe_dump(mapping))
    if isinstance(result, ConfigError):
        assert all(problem.line for problem in result.problems)
    else:
        assert isinstance(result, Settings)


yaml_like = st.lists(
    names.map(lambda name: name + ":")
    | st.sampled_from(list(" \n\t:-?,[]{}#&*!|>'\"%@`~$\\\0\x07\u2028\ufeff"))
    | st.sampled_from(["\n  ", "\r\n", ": ", "- ", "---", "&a", "*a", "!!int", "<<", "1", "auto"])
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=2)
).map("".join)


@RANDOM
@given(text=yaml_like)
@pytest.mark.slow
def test_any_text_gives_settings_or_a_config_error(scratch, text):
    assert isinstance(outcome(scratch / "text.yaml", text), (Settings, ConfigError))


@RANDOM
@given(content=st.binary())
def test_any_bytes_give_settings_or_a_config_error(scratch, content):
    file = scratch / "bytes.yaml"
    file.write_bytes(content)
    try:
        load(file)
    except ConfigError as error:
        assert str(error)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
some_text = texts.filter(lambda text: text.strip() != "")
paths = some_text.map(lambda text: "x" + text.replace("$", "$$"))
sizes = st.just("auto") | st.integers(1, 10**6)
seconds = st.floats(0, allow_infinity=False)
good = st.fixed_dictionaries(
    {},
    optional={
        "Version": st.sampled_from([1, 1.0, "1.2.3"]),
        "Applications": st.fixed_dictionaries(
            {}, optional={"Path": paths, "Queue": paths, "Heatmap": st.none() | paths}
        ),
        "Scheduling": st.fixed_dictionaries(
            {},
            optional={
                "Algorithm": some_text,
                "Backfilling": st.sampled_from(["none", "easy", "conservative", 0, 1, True, False])
                | st.integers(2),
            },
        ),
        "Hosts": st.fixed_dictionaries(
            {},
            optional={
                "File": st.none() | paths,
                "Reach": st.sampled_from(["auto", "ssh", "srun"]) | st.lists(texts, min_size=1),
                "Timeout": st.floats(0, exclude_min=True, allow_infinity=False),
                "Steps": st.sampled_from(["shared", "each"]),
            },
        ),
        "Nodes": sizes,
        "Sockets": sizes,
        "Cores": sizes.map(str),
        "Threads": st.integers(1, 8),
        "Emulate": st.booleans(),
        "Allocation": st.fixed_dictionaries({}, optional={"Policy": some_text}),
        "Walltime": st.sampled_from(["warn", "kill", "ignore"]),
        "Memory": st.fixed_dictionaries({"Over": st.sampled_from(["warn", "kill", "off"])}),
        "Output": st.fixed_dictionaries({"Archive": st.booleans()}),
        "Grace": seconds,
        "OnStop": st.sampled_from(["kill", "wait", "requeue"]),
        "Forecast": st.booleans(),
        "Log": paths,
        "State": paths,
        "Directory": paths,
        "Launcher": st.fixed_dictionaries(
            {},
            optional={
                "Kind": some_text,
                "Mpirun": st.just("auto") | paths,
                "AllowRoot": st.booleans(),
                "Transport": st.sampled_from(["auto", "tcp", "site"]),
                "Options": st.lists(texts),
                "CheckBindings": st.sampled_from(["warn", "fail", "ignore"]),
                "Environment": st.dictionaries(
                    st.text(ascii_letters, min_size=1), texts | st.integers() | st.booleans()
                ),
            },
        ),
        "Replay": st.fixed_dictionaries(
            {}, optional={"Speed": st.floats(0, exclude_min=True, allow_infinity=False)}
        ),
    },
)


def test_half_of_a_pair_is_no_character(scratch):
    (scratch / "half.yaml").write_text('Applications: {Path: bin, Queue: queue}\nPowerCap: "\\ud800"\n')
    with pytest.raises(ConfigError, match="PowerCap: contains a character that no path or argument can hold"):
        load(scratch / "half.yaml")


@RANDOM
@given(mapping=good)
@pytest.mark.slow
def test_what_is_dumped_is_loaded_again(scratch, mapping):
    (scratch / "first.yaml").write_text(yaml.safe_dump(mapping))
    settings = load(scratch / "first.yaml")
    other = scratch / "other"
    other.mkdir(exist_ok=True)
    (other / "second.yaml").write_text(yaml.safe_dump(dump(settings)))
    again = load(other / "second.yaml")
    assert again == settings
    assert dump(again) == dump(settings)
    for key in mapping:
        assert settings.where(key).startswith(str(scratch / "first.yaml") + ":")


def test_the_demonstration_runs_one_queue_under_two_placements():
    compact, strip = (load(Path(__file__).parents[2] / "config" / f"{name}.yaml") for name in ("compact", "strip"))
    assert compact.applications.queue == strip.applications.queue and compact.applications.queue.is_file()
    assert compact.scheduling == strip.scheduling
    assert (compact.allocation.policy, strip.allocation.policy) == ("compact", "strip")
