"""The commands that users type every day: what they say, and that each explains itself."""

from __future__ import annotations
from support import warm

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from collections.abc import Iterator

import pytest

from conftest import Site, wait_until
import vrm as vrm_package
from vrm import cli
from vrm.cli import main
from vrm.commands.guide import EVERYDAY, GROUPS
from vrm.ext.help.manual import manual
from vrm.commands.parsing import Parser
from vrm.commands.shared import BOUND
from vrm.results.metrics import THRESHOLD
from vrm.workload.grammar import UNKNOWN_TIME

VRM = [sys.executable, "-m", "vrm.cli"]
DATA = Path(__file__).resolve().parent.parent / "data" / "0.1.0"


def everything(parser: Parser) -> dict[str, Parser]:
    """All commands by how they are typed."""
    found = {}
    for inner in parser.commands().values():
        found[inner.prog] = inner
        found.update(everything(inner))
    return found


COMMANDS = everything(cli.parser())
REPLACED = re.compile(r"\b(mend\w*|tell|tells|told|anew|beside|stands?)\b")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: an empty one, without a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VRM_CONFIG", raising=False)
    return tmp_path


# ------------------------------------------------------------------------------------------ help


def test_each_command_has_its_place_in_the_overview(capsys: Any) -> None:
    placed = [name for _, names in GROUPS for name in names]
    assert sorted(placed) == sorted(cli.parser().commands())
    assert main(["help", "--all"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    for name in placed:
        assert re.search(rf"^  {name} +\w", said, re.MULTILINE), name
    assert "--failed" in said and "--info {queue,state}" in said


def test_vrm_help_shows_the_everyday_commands(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and max(map(len, said.splitlines())) <= 80 and "`vrm help --all`" in said
    shown = re.findall(r"^  (\w+) +\w", said, re.MULTILINE)
    assert shown == " ".join(names for _, names in EVERYDAY).split() and len(shown) <= 17 and set(shown) <= set(
        cli.parser().commands())
    assert len(said.splitlines()) <= 46


@pytest.mark.parametrize("name, shown, hidden", [
    ("simulate", "--nodes", "--warm-up"), ("submit", "--array", "--watts"), ("advise", "--sizes", "--node-order"),
    ("forecast", "--why", "--lml")])
def test_a_long_help_page_shows_the_usual_options_and_all_by_all(name: str, shown: str, hidden: str, capsys: Any) -> None:
    parser = cli.parser().commands()[name]
    assert set(parser.usual) <= set(parser.options()), "an option of that name is there"
    assert main(["help", name]) == 0
    said = capsys.readouterr().out
    assert shown in said and hidden not in said
    more = int(re.search(rf"^(\d+) more options: vrm help {name} --all$", said, re.MULTILINE)[1])
    assert main(["help", name, "--all"]) == 0
    whole = capsys.readouterr().out
    assert shown in whole and hidden in whole and "more options" not in whole

    def count(page: str) -> int:
        return len(re.findall(r"^  -", page, re.MULTILINE))

    assert count(whole) == count(said) + more and main(["help", name]) == 0 and capsys.readouterr().out == said


def test_the_second_spelling_of_an_option_is_understood_and_not_shown(capsys: Any) -> None:
    assert main(["help", "submit", "--all"]) == 0
    assert "gpus_per_task" not in capsys.readouterr().out
    for option in ("--gpus-per-task", "--gpus_per_task"):
        assert cli.parser().parse_all(["submit", "a.x", "2", option, "3"]).gpus_per_task == "3"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
                                      ) -> None:
    """Its page has an example that can be typed as it is, in words that everybody knows."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*name.split()[1:], "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert main(["help", *name.split()[1:]]) == 0
    assert capsys.readouterr().out == said
    assert not REPLACED.search(said), REPLACED.search(said)
    assert max(map(len, said.splitlines())) <= 100
    shown = said.partition("\nexample")[2].splitlines()[1:]
    assert shown, f"{name} has no example"
    for line in shown:
        words = re.sub(r'^eval "\$\((.*)\)"$', r"\1", line.strip()).partition(" > ")[0]
        assert words.startswith(name) or name == "vrm run", line
        cli.parser().parse_all(shlex.split(words)[1:])


def test_no_message_of_the_overview_uses_old_words(capsys: Any) -> None:
    assert main(["help"]) == 0
    assert not REPLACED.search(capsys.readouterr().out)


def test_vrm_alone_explains_itself(empty: Path, capsys: Any) -> None:
    """Where there is nothing to run; the status stays that of a run that could not begin."""
    assert main([]) == cli.COULD_NOT_RUN
    said = capsys.readouterr()
    assert "vrm init" in said.out and said.err == "" and list(empty.iterdir()) == []


@pytest.mark.parametrize("words", ["pool start my.queue --now", "pool start --max-nodes 3 my.queue", "plan --all my.queue"])
def test_a_word_that_may_be_left_out_may_stand_behind_options(words: str) -> None:
    assert cli.parser(words.split()).parse_all(words.split()).queue == "my.queue"


@pytest.mark.parametrize("words, said", [
    (["quue"], "vrm: there is no command `quue`; did you mean queue?"),
    (["lgo", "3"], "did you mean log?"),
    (["zzz"], "there is no command `zzz`; the commands are run, shell, submit,"),
    (["npb", "biuld"], "vrm npb: there is no command `biuld`; did you mean build?"),
    (["help", "sbumit"], "there is no command `sbumit`; did you mean submit?"),
    (["submit", "nap", "1", "--naem", "x"], "unknown option --naem; did you mean --name?"),
    (["simulate", "x", "--algoritm=sjf"], "unknown option --algoritm=sjf; did you mean --algorithm"),
    (["queue", "--zzz"], "vrm queue: unknown option --zzz (`vrm queue --help`"),
    (["submit", "nap", "1", "10", "5"], "vrm submit: `5` is one word too many; arguments of the "
                                        "program go after `--`"),
    (["doctor", "3"], "vrm doctor: `3` is one word too many ("),
    (["sbatch", "x"], "there is no command `sbatch`; run it with vrm's commands of Slurm and PBS first on PATH: `vrm run "),
    (["start"], "`vrm run` starts the manager"), (["list"], "`vrm queue` lists the jobs"),
    (["kill", "3"], "`vrm cancel ID` ends a job"), (["version"], "`vrm --version`"),
    (["submit", "-n", "4", "solver"], "the ranks follow the program: `vrm submit PROGRAM 4 TIME`"),
])
def test_a_mistake_gets_the_commands_own_usage(
        empty: Path, capsys: Any, words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    err = capsys.readouterr().err
    assert ended.value.code == 2 and said in err
    names = " ".join(words[:1] if words[0] in cli.parser().commands() else [])
    assert err.startswith(f"usage: vrm {names}")


def test_starting_needs_no_heavy_library() -> None:
    """Not those of configurations, figures, completion or live runs."""
    heavy = {"numpy", "yaml", "pydantic", "argcomplete", "prettytable", "psutil", "ClusterShell",
             "vrm.config.schema", "vrm.model", "vrm.live", "vrm.simulation", "vrm.results.metrics"}
    code = "import sys, vrm.cli; vrm.cli.parser(); print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())
    assert BOUND == THRESHOLD and UNKNOWN_TIME == 3600  # written twice for that


@pytest.mark.parametrize("words", [
    "--version", "queue", "-c vrm.yaml -i queue", "status --json", "log 3", "submit a.x 2", "cancel 3", "lend 3 --to 7"])
def test_looking_and_asking_read_no_more_of_the_configuration_than_they_need(empty: Path, words: str) -> None:
    (empty / "vrm.yaml").write_text("Log: here\n")
    (empty / "here").mkdir()
    shutil.copy(DATA / "state", empty / "here" / "state")
    code = f"import sys\nfrom vrm.cli import main\ntry: main({words.split()})\nfinally: print(' '.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    loaded = set(done.stderr.splitlines()[-1].split())
    assert not {"numpy", "pydantic", "vrm.config.schema", "vrm.live", "vrm.scheduling", "vrm.model.cluster"} & loaded
    assert not loaded & {f"vrm.commands.{name}" for name in cli.MODULES if name not in ("job", "status", "log", "lend")}


def test_a_simulation_without_a_configuration_loads_none_of_what_reads_one() -> None:
    code = "import sys\nfrom vrm.cli import main\nmain(['simulate', 'lublin:8:10'])\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pydantic", "yaml", "vrm.config.schema"} & set(done.stdout.splitlines()[-1].split())


def test_the_table_of_commands_says_what_each_module_has() -> None:
    for name, commands in cli.MODULES.items():
        for word in commands.split():
            alone = cli.parser([word]).commands()
            assert list(alone) == ["run", "shell", *commands.split()], name
            assert alone[word].format_help() == COMMANDS[f"vrm {word}"].format_help()


@pytest.mark.parametrize("words, needed", [
    (["queue"], ["status"]), (["-c", "queue", "submit", "top"], ["job"]), (["-i", "queue"], []), ([], []), (["run"], []),
    (["-c", "f", "--once"], []), (["--config=f", "queue"], list(cli.MODULES)), (["no", "queue"], list(cli.MODULES)),
    (["--help"], list(cli.MODULES))])
def test_a_command_line_loads_what_it_needs(words: list[str], needed: list[str]) -> None:
    assert cli.modules_of(words) == needed


# ---------------------------------------------------------------------------------- manual pages


@pytest.mark.parametrize("name", ["vrm", "vrm submit", "vrm npb", "vrm npb build"])
def test_manual_pages_are_what_man_reads(name: str) -> None:
    page = manual(cli.parser() if name == "vrm" else COMMANDS[name])
    for line in page.splitlines():
        if line.startswith("."):
            assert re.match(r"\.(TH|SH|SS|TP|PP|B|nf|fi)\b", line), line
    assert page.startswith(f'.TH "{name.upper().replace(" ", "-")}" 1 ')
    if name == "vrm":
        assert all(f".SS {each}\n".replace("-", "\\-") in page for each in COMMANDS)


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff here")
def test_groff_has_nothing_to_complain_about() -> None:
    page = manual(cli.parser())
    done = subprocess.run(["groff", "-man", "-ww", "-Tascii", "-P-cbou"], input=page,
                          capture_output=True, text=True, check=True)
    assert done.stderr == "" and "vrm submit APP RANKS [TIME] [options]" in done.stdout


# ------------------------------------------------------------------------------------ completion


@pytest.mark.parametrize("shell, sign", [
    ("bash", "complete "), ("zsh", "#compdef vrm\n"), ("fish", "complete --command vrm")])
def test_completion_is_code_for_the_shell(shell: str, sign: str, capsys: Any) -> None:
    assert main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert sign in said and "vrm" in said
    assert shell != "zsh" or said.startswith(sign)
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=said, text=True, check=True)


def completed(line: str, where: Path) -> list[str]:
    """What a shell would be offered at the end of the line."""
    answer = where / "answer"
    subprocess.run([*VRM], cwd=where, check=True, stdout=subprocess.DEVNULL, env={
        **os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1", "COMP_TYPE": "9", "VRM_CONFIG": "vrm.yaml"})
    return answer.read_text().split("\n")


def test_commands_options_jobs_programs_and_files_are_completed(site: Site) -> None:
    a_run(site)
    assert completed("vrm sub", site.root) == ["submit"]
    assert "--follow" in completed("vrm log --f", site.root)
    assert completed("vrm log ", site.root)[:3] == ["0", "1", "2"]
    assert completed("vrm requeue 0 ", site.root)[:2] == ["0", "1"]
    assert completed("vrm submit sa", site.root) == ["says.x"]
    site.config(Launcher={"Kind": "direct"}, Applications={
        "Path": str(site.bin), "Queue": str(site.queue), "Programs": {"saw": "/bin/true"}})
    assert completed("vrm submit sa", site.root) == ["saw", "says.x"]
    assert completed("vrm check -c vrm.y", site.root) == ["vrm.yaml"]
    assert completed("vrm simulate que", site.root) == ["queue"]


# ----------------------------------------------------------------------- submit, queue, status, log


def a_run(site: Site) -> None:
    """Three jobs that end: two well."""
    site.config(Launcher={"Kind": "direct"})
    site.program("says.x", "echo \"said $*\"\n")
    site.program("fails.x", "echo bad news >&2; exit 3\n")
    site.lines("says.x 1 10 0 args='a b'", "fails.x 1 10 0", "says.x 1 10 0")
    assert site.run().returncode == 1


def test_an_ended_run_shows_its_jobs(site: Site) -> None:
    a_run(site)
    for words in (["queue"], ["status"], ["-i", "queue"], ["queue", "--all"]):
        said = site.run(*words)
        assert said.returncode == 0 and "the manager has ended" in said.stdout
        assert re.search(r"^\| 1 +\| fails.x \|.*\| failed +\|.* exit 3", said.stdout, re.M)
        assert len(re.findall(r"^\| [0-9]", said.stdout, re.M)) == 3
    jobs = json.loads(site.run("queue", "--json").stdout)["ended_jobs"]
    assert [(job["id"], job["status"]) for job in jobs] == [
        (0, "completed"), (1, "failed"), (2, "completed")]


def test_a_queue_shows_as_many_waiting_jobs_as_one_wants(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("waits.x", f"while [ ! -e {site.root}/go ]; do sleep 0.05; done\n")
    site.lines("waits.x 1 10 0", *(f"waits.x 1 {10 + number} 0" for number in range(1, 9)))
    process = site.start()
    wait_until(lambda: len((site.state() or {"jobs": []})["jobs"]) == 9 and site.running() == ["0"], "the first job runs")
    said = site.run("queue", "--limit", "3").stdout
    assert re.findall(r"^\| (\d+) ", said, re.M) == ["0", "1", "2", "3"]
    assert said.rstrip().endswith("... and 5 more waiting; `vrm queue --all` shows them") and "8 waiting" in said
    for words in (["queue"], ["queue", "--all", "--limit", "3"], ["-i", "queue"]):
        assert len(re.findall(r"^\| \d+ ", site.run(*words).stdout, re.M)) == 9
    assert len(json.loads(site.run("queue", "--json", "--limit", "3").stdout)["jobs"]) == 9
    (site.root / "go").touch()
    site.finish(process)


def test_a_running_queue_shows_its_ended_jobs_when_asked(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("says.x", "exit 0\n")
    site.program("waits.x", f"while [ ! -e {site.root}/go ]; do sleep 0.05; done\n")
    site.lines("says.x 1 10 0", "waits.x 1 10 0")
    process = site.start()
    wait_until(lambda: [job["id"] for job in (site.state() or {"jobs": []})["jobs"]] == [1]
               and site.running() == ["1"], "only the second job runs")
    assert "says.x" not in site.run("queue").stdout
    for words, shown in ((["0"], ["0"]), (["1"], ["1"]), (["0-1"], ["1", "0"]), (["failed"], []), (["all"], ["1", "0"]), (["7"], [])):
        said = site.run("queue", *words).stdout
        assert re.findall(r"^\| (\d+) ", said, re.M) == shown and ("no such job" in said) == (not shown)
        found = json.loads(site.run("queue", "--json", *words).stdout)
        assert [str(job["id"]) for job in (*found["jobs"], *found["ended_jobs"])] == shown
    assert "no job has this name" in site.run("queue", "other").stderr
    said = site.run("queue", "--all").stdout
    assert re.search(r"^\| 1 +\| waits.x \| 1 +\| R ", said, re.M)
    assert re.search(r"^\| 0 +\| says.x +\| 1 +\| completed", said, re.M)
    (site.root / "go").touch()
    site.finish(process)


def test_a_queue_says_at_once_that_its_manager_is_dead(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("waits.x", f"while [ ! -e {site.root}/go ]; do sleep 0.05; done\n")
    site.lines("waits.x 1 10 0")
    process = site.start()
    wait_until(lambda: site.running() == ["0"], "the job runs")
    assert "is dead" not in site.run("queue").stdout
    process.kill()
    process.wait()
    for words in ("queue", "status"):
        assert f"the manager (pid {process.pid}) is dead" in site.run(words).stdout
    assert json.loads(site.run("queue", "--json").stdout)["stale"] is True
    (site.root / "go").touch()
    site.finish(site.start())
    assert "command(s)" not in site.run("queue").stdout
    assert site.run("requeue", "0").returncode == 0
    assert "1 command(s) that were given meanwhile wait for the next manager" in site.run("queue").stdout
    site.finish(site.start())
    assert "command(s)" not in site.run("queue").stdout and site.rows()[0].status == "completed"


def test_many_ended_jobs_are_not_all_shown_at_once(site: Site) -> None:
    from vrm.report.ended_jobs import LAST, ended_table
    from vrm.results.jobs import JobRow

    rows = [JobRow(each, "a.x", 1, 0.0, 0.0, 1.0, 1.0, "completed") for each in range(LAST + 3)]
    short = ended_table(rows)
    assert short.count("| 1.00 s |") == short.count("completed") == LAST and "and 3 that ended before" in short
    assert ended_table(rows, all_of_them=True).count("completed") == LAST + 3
    wide = [JobRow(7, "a" * 90, 1, 0.0, 0.0, 1.0, 1.0, "failed", reason="why " * 40)]
    for width in (40, 60, 80):
        assert max(map(len, ended_table(wide, width).splitlines())) <= width


def test_log_shows_what_a_job_has_printed(site: Site) -> None:
    a_run(site)
    assert site.run("log", "0").stdout == "said a b\n"
    assert site.run("log", "1", "--err").stdout == "bad news\n"
    empty = site.run("log", "1")
    assert empty.stdout == "" and "`vrm log 1 --err` shows standard error" in empty.stderr
    followed = site.run("log", "1", "--follow", "--err")
    assert followed.stdout == "bad news\n" and "job 1 (fails.x): failed, exit 3" in followed.stderr
    for words, why in ((["log", "9"], "there is no job 9"),):
        said = site.run(*words)
        assert said.returncode == 2 and why in said.stderr


def test_a_job_that_was_refused_has_no_log_and_no_figures(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.lines("nothing.x 1 10 0")
    done = site.run()
    assert done.returncode == 1 and "queue --all" in done.stdout and "vrm report" not in done.stdout
    said = site.run("log", "0")
    assert said.returncode == 2 and "job 0 never ran: refused" in said.stderr


def test_follow_waits_for_a_job_and_ends_with_it(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("waits.x", f"echo one; while [ ! -e {site.root}/go ]; do sleep 0.05; done\n"
                            "echo two\n")
    site.program("last.x", "echo last\n")
    site.lines("waits.x 1 10 0", "last.x 1 10 0")
    process = site.start()
    wait_until(lambda: site.running() == ["0"], "the first job runs")
    early = site.run("log", "1")
    assert early.returncode == 2 and "`vrm log 1 --follow` waits for it" in early.stderr
    both = [subprocess.Popen([*VRM, "-c", str(site.config_file), "log", job, "--follow"],
                             cwd=site.root, env=site.env, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE) for job in ("0", "1")]
    assert both[0].stdout is not None and both[0].stdout.readline() == "one\n"
    (site.root / "go").touch()
    said = [each.communicate(timeout=60) for each in both]
    assert [out for out, _ in said] == ["two\n", "last\n"]
    assert [err for _, err in said] == ["job 0 (waits.x): completed\n",
                                        "job 1 (last.x): completed\n"]
    site.finish(process)


def test_submit_passes_on_what_follows_the_dashes(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("says.x", "for word in \"$@\"; do echo \"<$word>\"; done\n")
    site.lines(end=False)
    process = site.start("--wait")
    wait_until(lambda: (site.log / "state").exists(), "the manager runs")
    first = site.run("submit", "says.x", "1", "10", "--", "-c", "a b", "--", "--hold", "$HOME")
    assert (first.returncode, first.stdout) == (0, "job 0: says.x waits\n")
    assert site.run("submit", "says.x", "1", "--args", "x 'y z'").returncode == 0
    twice = site.run("submit", "says.x", "1", "--args", "x", "--", "y")
    assert twice.returncode == 2 and "arguments are given twice" in twice.stderr
    site.append("end\n")
    site.finish(process)
    assert site.run("log", "0").stdout == "<-c>\n<a b>\n<-->\n<--hold>\n<$HOME>\n"
    assert site.run("log", "1").stdout == "<x>\n<y z>\n"
    assert site.rows()[1].walltime == 3600


# -------------------------------------------------------------------------------- init and check


def executable(path: Path, text: str = "exit 0\n") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def vrm(where: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("VRM_", "SLURM_", "PBS_"))}
    return warm.run(words, cwd=where, env={**clean, **env}, timeout=60)


@pytest.mark.slow
def test_what_init_writes_runs(empty: Path) -> None:
    """Without another word: init, check, run."""
    executable(empty / "bin" / "first", "echo one\n")
    executable(empty / "bin" / "cg.S.x", "echo two\n")
    begun = vrm(empty, "init", "--ranks", "1")
    assert begun.returncode == 0, begun.stderr
    assert "2 in bin: cg.S.x, first" in begun.stdout and "vrm check" in begun.stdout
    checked = vrm(empty, "check")
    assert checked.returncode == 0, checked.stdout
    assert "all 2 line(s) can run" in checked.stdout
    done = vrm(empty, "run", "--once")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "two" in vrm(empty, "log", "0").stdout


@pytest.mark.slow
def test_what_init_writes_leaves_the_directory_of_a_workflow_alone(empty: Path) -> None:
    """Many workflows write and remove `logs`."""
    executable(empty / "bin" / "first", "echo one\n")
    assert vrm(empty, "init", "--ranks", "1").returncode == 0
    done = vrm(empty, "run", "--", "sh", "-c", "mkdir logs && touch logs/mine && rm -r logs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (empty / "vrm-logs" / "journal").exists() and not (empty / "logs").exists()


def test_init_overwrites_nothing(empty: Path) -> None:
    (empty / "vrm.yaml").write_text("Nodes: 1\n")
    (empty / "elsewhere").write_text("kept\n")
    (empty / "queue").symlink_to("nowhere")
    (empty / "vrm.slurm").write_text("mine\n")
    said = vrm(empty, "init", "--slurm")
    assert said.returncode == 0
    assert (empty / "vrm.yaml").read_text() == "Nodes: 1\n"
    assert (empty / "vrm.slurm").read_text() == "mine\n"
    assert not (empty / "nowhere").exists()
    assert said.stdout.count("kept ") == 3


@pytest.mark.slow
def test_init_takes_programs_of_another_directory(empty: Path) -> None:
    executable(empty / "code" / "solver")
    (empty / "run").mkdir()
    assert vrm(empty / "run", "init", "../code/solver", "--ranks", "1").returncode == 0
    assert vrm(empty / "run", "check").returncode == 0
    wrong = vrm(empty / "run", "init", "../code/nothing")
    assert wrong.returncode == 2 and "is not an executable file" in wrong.stderr
    executable(empty / "other" / "tool")
    several = vrm(empty / "run", "init", "../code/solver", "../other/tool")
    assert several.returncode == 2 and "Applications: {Programs: {NAME: PATH}}" in several.stderr


def test_init_takes_scripts_that_are_meant(empty: Path) -> None:
    """What is named, or lies in bin, may be a script; one in the directory itself is more often a helper."""
    for place, name in ((".", "named.py"), ("bin", "work.py")):
        (empty / place).mkdir(exist_ok=True)
        (empty / place / name).write_text("#!/usr/bin/env python3\n")
        (empty / place / name).chmod(0o755)
    assert "1 in .: named.py" in vrm(empty, "init", "named.py").stdout
    assert "1 in bin: work.py" in vrm(empty, "init").stdout
    (empty / "bin" / "work.py").unlink()
    assert "none yet" in vrm(empty, "init").stdout


def test_init_where_there_is_nothing(empty: Path) -> None:
    said = vrm(empty, "init")
    assert said.returncode == 0 and "vrm npb build" in said.stdout
    assert (empty / "vrm.yaml").exists() and (empty / "queue").exists()


@pytest.mark.parametrize("system, sign", [("slurm", "#SBATCH --nodes=3"),
                                          ("pbs", "#PBS -l select=3")])
@pytest.mark.slow
def test_init_writes_the_batch_script(empty: Path, system: str, sign: str) -> None:
    executable(empty / "bin" / "a")
    said = vrm(empty, "init", f"--{system}", "-N", "3", "-t", "90m")
    assert said.returncode == 0, said.stderr
    text = (empty / f"vrm.{system}").read_text()
    assert sign in text and text.endswith("vrm -c vrm.yaml \"$@\"\n")
    assert f"vrm.{system}" in said.stdout.partition("next:")[2]
    assert vrm(empty, "init", f"--{system}", "-t", "soon").returncode == 2


def test_check_names_every_line_that_can_never_run(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"}, Cores=2,
                End={"At": "0:10:00"}, Allocation={"Policy": "pack"})
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 2 10 0", "cg.A.x 64 10 0", "ok.x 64 10 0", "# a comment", "ok.x one 10 0",
               "ok.x 1 10 0 after=9", "ok.x 1 10 0 after=0 array=0-4", "ok.x 1 10 0 after=8",
               "ok.x 1 700 0")
    said = site.run("check")
    assert said.returncode == 1
    wrong = {int(line): why for line, why in
             re.findall(r"^wrong  queue:(\d+) +(.*)", said.stdout, re.M)}
    assert sorted(wrong) == [2, 3, 5, 6, 9]
    assert "cg.A.x 64: " in wrong[2] and "does not exist" in wrong[2]
    assert "64 ranks do not fit on 1 node(s)" in wrong[3] and "Launcher.Kind" not in wrong[3]
    assert "`one`" in wrong[5] and "after=9" in wrong[6] and "longer than the allocation" in wrong[9]
    assert "5 of 8 lines can never run" in said.stdout
    assert not site.log.exists()  # and nothing was made


def test_check_agrees_with_what_the_manager_refuses(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"}, Cores=2)
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 2 10 0", "ok.x 3 10 0", "no.x 1 10 0", "ok.x 1 10 0 cores=3",
               "ok.x 1 10 0 after=7", "ok.x 1 10 0 after=0")
    lines = [int(line) for line in re.findall(r"^wrong  queue:(\d+)", site.run("check").stdout,
                                              re.M)]
    site.run()
    refused = [job for job, status in site.statuses().items() if status == "refused"]
    assert refused == [line - 1 for line in lines] == [1, 2, 3, 4]


def test_check_of_a_configuration_that_cannot_be_used(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"}, Scheduling={"Algorithm": "FCSF"})
    site.lines("ok.x 1 10 0")
    said = site.run("check")
    assert said.returncode == 2 and "Scheduling.Algorithm" in said.stdout
    site.config(Nods=3)
    said = site.run("check")
    assert said.returncode == 2 and "did you mean Nodes?" in said.stdout


def test_check_knows_other_machines(site: Site) -> None:
    """As the configuration describes one, or the command line."""
    site.config(Launcher={"Kind": "direct"}, Nodes=64, Sockets=2, Cores=64)
    site.program("ok.x", "exit 0\n")
    site.lines("ok.x 128 10 0")
    said = site.run("check")
    assert said.returncode == 0 and "this machine is smaller" in said.stdout
    site.config(Launcher={"Kind": "direct"}, Nodes="auto", Sockets="auto", Cores="auto")
    site.lines("ok.x 3000 10 0")
    assert site.run("check").returncode == 1
    said = site.run("check", "--nodes", "2", "--sockets", "2", "--cores", "800")
    assert "on 1 of 2 node(s)" in said.stdout and "; Launcher.Kind: direct starts" in said.stdout
    site.lines("ok.x 3000 10 0 nodes=2")
    said = site.run("check", "--nodes", "2", "--sockets", "2", "--cores", "800")
    assert "it needs 2 nodes, and Launcher.Kind: direct" in said.stdout
    site.lines("ok.x 1600 10 0")
    assert site.run("check", "--nodes", "2", "--sockets", "2", "--cores", "800").returncode == 0


def test_check_looks_into_heatmap_and_estimates(site: Site) -> None:
    (site.root / "heat").write_text("ok ok\n")
    (site.root / "estimates.csv").write_text(
        "app,procs,seconds,app_seconds,runs\nok.x,1,30,29,3\n")
    site.config(Launcher={"Kind": "direct"}, Cores=2, Walltime="kill",
                Allocation={"Policy": "strip"},
                Applications={"Path": str(site.bin), "Queue": str(site.queue),
                              "Heatmap": str(site.root / "heat")})
    site.program("ok.x", "exit 0\n")
    site.program("other.x", "exit 0\n")
    site.program("cg.S.x", "exit 0\n")
    site.lines("ok.x 1 10 0", "other.x 1 10 0", "other.x 1 10 0")
    said = site.run("check", "--estimates", str(site.root / "estimates.csv"))
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("other.x is not in the heatmap") == 1
    assert "ok.x on 1 rank(s) took 30 s, its estimate is 10 s; Walltime: kill" in said.stdout
    assert "other.x on 1 rank(s) is not in the estimates" in said.stdout


def test_many_bad_lines_are_counted(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.lines(*["no.x 1 10 0"] * 50)
    said = site.run("check").stdout
    assert said.count("wrong  queue:") == 20 and "and 30 more lines" in said
    assert "50 of 50 lines can never run" in said


# ----------------------------------------------------------------------------------- progress


def test_building_counts_programs_and_time(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vrm.ext.measure.commands import npb
    from vrm.ext.measure.npb_build import BUILT, FAILED, BuildResult

    clock = iter([100.0, 110.0, 120.0, 130.0])
    monkeypatch.setattr(npb.time, "monotonic", lambda: next(clock))
    progress = npb.Progress(3)
    progress.report(BuildResult("cg", "S", Path("cg.S.x"), BUILT))
    progress.report(BuildResult("ft", "S", Path("ft.S.x"), FAILED, message="no compiler"))
    progress.report(BuildResult("is", "S", Path("is.S.x"), BUILT))
    said = capsys.readouterr()
    assert said.out == "[1/3] cg.S.x: built; about 20 s left\n[3/3] is.S.x: built\n"
    assert said.err == "[2/3] ft.S.x: failed (ft, class S): no compiler\n"


@pytest.mark.skipif(not shutil.which("mpicc"), reason="no mpicc here")
def test_each_program_that_is_built_has_its_number(site: Site) -> None:
    done = site.run("npb", "build", "--apps", "ep,is", "--classes", "S", "-j", "1")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\[(\d/\d)\] (?:ep|is)\.S\.x: ", done.stdout, re.M) == ["1/2", "2/2"]


# ---------------------------------------------------------------- the beginning and end of a run


def test_a_run_says_where_jobs_run_and_what_to_type_next(site: Site) -> None:
    """Jobs run with their queue file, from wherever vrm was started; `Applications.RunIn` and
    `dir=` say otherwise."""
    site.config(Launcher={"Kind": "direct"})
    site.program("where.x", "pwd\n")
    (site.root / "sub").mkdir()
    site.lines("where.x 1 10 0", "where.x 1 10 0 dir=sub")
    words = [*VRM, "-c", str(site.config_file)]
    done = subprocess.run(words, cwd="/", env=site.env, text=True, capture_output=True, check=True)
    assert f"jobs run in {site.root}, unless they have a dir= of their own" in done.stdout
    assert (site.log / "where.x.0.o").read_text() == f"{site.root}\n"
    assert (site.log / "where.x.1.o").read_text() == f"{site.root}/sub\n"
    last = [line for line in done.stdout.splitlines() if "of the core time was idle" not in line][-3:]
    assert re.fullmatch(r"mean of 2 completed jobs: [0-9.]+ s waiting, [0-9.]+ s running, [0-9.]+ s "
                        "from submission to end", last[0])
    assert f"vrm -c {site.config_file} queue --all" in last[1] and "vrm report " in last[1]
    assert re.fullmatch(r"FCFS\(0\): \([0-9.]+, [0-9.]+, [0-9.]+\)", last[2])
    site.config(Launcher={"Kind": "direct"}, Applications={
        "Path": str(site.bin), "Queue": str(site.queue), "RunIn": "sub"})
    site.lines("where.x 1 10 0")
    assert site.run("--fresh").returncode == 0
    assert (site.log / "where.x.0.o").read_text() == f"{site.root}/sub\n"


def test_after_a_failure_the_next_step_is_its_log(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"})
    site.program("fails.x", "echo bad news >&2; exit 3\n")
    site.lines("fails.x 1 10 0")
    said = site.run().stdout
    typed = re.search(r"next: `vrm -c \S+ (log 0 --err)` shows the error output of job 0", said)
    assert typed and site.run(*typed[1].split()).stdout == "bad news\n"
    assert said.splitlines()[-1] == "FCFS(0): no job completed"


# ------------------------------------------------------------------------------------ plain words


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that are no docstrings, with their lines; single words are names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
                and id(node) not in bare):
            yield node.lineno, node.value


def test_messages_are_in_words_that_everybody_knows() -> None:
    """No message, help or comment of a written file has one of the words that were replaced."""
    found = [f"{path.name}:{line}: {text}" for path in Path(vrm_package.__file__).parent.rglob("*.py")
             for line, text in texts(path) if REPLACED.search(text)]
    assert not found, "\n".join(found)
