"""How a run schedules is one table: a key that is added there, in one line, is known everywhere.

Run as a program, this file is vrm with such a key more.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vrm
from vrm.model.rules import KEYS, Rules

LINE = ('    patience: int = _rule(3, "count", "Scheduling.Patience", "wait for N turns", metavar="N")'
        "\n\n    def record(")


def with_the_key(site: Any, *arguments: str, status: int = 0) -> str:
    """What the program with one key more prints."""
    done = subprocess.run([sys.executable, __file__, *arguments], cwd=site.root, env=site.env,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
                          check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_one_line_makes_a_key(site: Any) -> None:
    """Configuration, simulate, its option, the state of a live run, validate and compare."""
    site.config(Launcher={"Kind": "direct"}, Scheduling={"Patience": 7})
    config = str(site.config_file)
    site.program("nothing", "sleep 0.2")
    site.lines("nothing 1 60 0")
    # A live run writes it.
    with_the_key(site, "-c", config, "--once")
    assert json.loads((site.log / "state").read_text())["scheduling"] == {
        "algorithm": "FCFS", "backfilling": "none", "policy": "compact", "patience": 7}
    # A simulation takes it from the configuration or an option, and writes it.
    for more, patience in (((), 7), (("--patience", "8"), 8)):
        said = json.loads(with_the_key(
            site, "simulate", "-c", config, "lublin:4:9", "--nodes", "4", "--json", "--out",
            str(site.root / f"simulated{patience}"), *more))
        assert said["patience"] == patience
    assert "--patience N wait for N turns" in " ".join(
        with_the_key(site, "help", "simulate", "--all").split())
    # It is read again, and told where it differs.
    compared = with_the_key(site, "compare", "simulated7", "simulated8")
    assert "patience 7" in compared and "patience 8" in compared
    assert with_the_key(site, "PRINT", str(site.log)).split() == ["7", "3"]
    assert "turnaround" in with_the_key(site, "validate", "--known", "actual", str(site.log))
    # What is not a value of it is refused with its place.
    site.config(Scheduling={"Patience": -1})
    said = with_the_key(site, "-c", config, "--once", status=2)
    assert 'Scheduling.Patience: found "-1", wanted a whole number, 0 or more' in said


def test_rules_of_a_file_are_read_back() -> None:
    rules = Rules("WFP3", "3", "strip", 0.5, True, 60.0, 2)
    assert Rules.read(rules.record()) == rules
    assert rules.record() == {"algorithm": "WFP3", "backfilling": "3", "policy": "strip",
                              "min_throughput": 0.5, "kill": True, "interval": 60.0,
                              "starts_per_interval": 2}
    # Those of 0.1.0 had less, and a number of reservations.
    old = {"algorithm": "FCFS", "backfilling": 3, "policy": "pack"}
    assert Rules.read(old) == Rules("FCFS", "3", "pack")
    for wrong in ({**old, "interval": -1}, {**old, "kill": 1}, {**old, "policy": "a\nb"}):
        with pytest.raises(ValueError):
            Rules.read(wrong)
    with pytest.raises(KeyError):
        Rules.read({"algorithm": "FCFS"})


def test_what_ends_jobs_at_their_estimate_is_one_of_the_rules(site: Any) -> None:
    """`vrm validate` replays a run under Walltime: kill by that rule."""
    from vrm.config.schema import Settings
    assert Settings(Walltime="kill").rules.kill and not Settings(Walltime="warn").rules.kill
    site.config(Launcher={"Kind": "direct"}, Walltime="kill", Grace=0.2)
    site.program("long", "sleep 60")
    site.program("short", "sleep 0.1")
    site.lines("long 1 1 0", "short 1 60 0")
    assert site.run("--once").returncode == 1
    assert json.loads((site.log / "state").read_text())["scheduling"]["kill"] is True
    from vrm.ext.study.validation.replay import read_rows, read_rules, validate
    rules, nodes = read_rules(site.log / "state")
    rows = read_rows(site.log / "jobs.csv")
    assert [row.status for row in rows] == ["timeout", "completed"]
    found = validate(rows, rules, nodes)
    # The job that was ended held its core for its estimate, and not for as long as it would run.
    assert found.jobs[0].simulated_wait == pytest.approx(1.0, abs=0.2)


def test_the_public_call_shows_every_key() -> None:
    from vrm.api import simulate
    assert len(inspect.signature(simulate).parameters) <= 8
    parameters = inspect.signature(inspect.signature(simulate, eval_str=True).parameters["rules"].annotation).parameters
    assert list(KEYS) == list(parameters)
    assert parameters["algorithm"].default == "FCFS" and parameters["kill"].default is False
    with pytest.raises(TypeError, match="simulate\\(\\) got an unexpected keyword argument 'patience'"):
        simulate("lublin:4:4", patience=1)


def main() -> int:
    """vrm's command line with one key more; `PRINT DIRECTORY`: its value in a run, and without."""
    import importlib.util
    path = Path(vrm.__file__).parent / "model" / "rules.py"
    text = path.read_text(encoding="utf-8").replace("\n    def record(", "\n" + LINE, 1)
    spec = importlib.util.spec_from_loader("vrm.model.rules", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["vrm.model.rules"] = module
    exec(compile(text, str(path), "exec"), vars(module))
    if sys.argv[1] == "PRINT":
        from vrm.ext.study.validation.replay import read_rules
        print(read_rules(Path(sys.argv[2], "state"))[0].patience, module.Rules().patience)  # type: ignore
        return 0
    from vrm.cli import main as command_line
    return command_line(sys.argv[1:])


if __name__ == "__main__":
    if "vrm.model.rules" in sys.modules:  # imported above; nothing has asked it anything yet
        for name in [name for name in sys.modules if name.startswith("vrm.model")]:
            del sys.modules[name]
    sys.exit(main())
