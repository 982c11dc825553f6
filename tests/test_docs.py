"""README and docs: every command in them is run here, or is in a list with the reason why not; their
links lead somewhere, and to each page; the README is short; the words are plain.

The commands of a page run in their order, in one shell, in a copy of the tree. Programs are stand-ins
that end at once.
"""

from __future__ import annotations
from support import warm

import ast
import gzip
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from collections.abc import Iterator

import pytest

from conftest import mpirun_environment

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "npb/README.md", "experiments/README.md", "packaging/README.md",
         *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]

NOT_RUN: list[tuple[str, str]] = [
    (r"python3 tasks\.py ", "the whole installation, demonstration and tests: .ci/run does it"),
    (r"git clone URL", "URL stands for the place of the user's choice"),
    (r"git -C ~/vrm pull", "needs a remote repository"),
    (r"python3 -m venv ", "an installation: .ci/run and tests/test_install.py make one"),
    (r"\S*pip (install|download|wheel) ", "an installation: .ci/run and tests/test_install.py make one"),
    (r"sha256sum --check SHA256SUMS|cp vrm-VERSION", "needs a release: tests/test_install.py builds one"),
    (r"conda ", "there is no conda where the tests run"),
    (r"module load ", "modules are a cluster's"),
    (r"tail -f ", "never ends"),
    (r"vrm top$", "fills the screen: tests/ext/top/test_top.py"),
    (r"vrm submit ", "needs a running manager: tests/live/manager/test_manager.py"),
    (r"vrm reserve ", "needs a running manager: tests/ext/reserve/test_reservations_live.py"),
    (r"vrm forecast --(site|slurm)|squeue |sinfo |vrm forecast --squeue", "needs a batch system: "
     "tests/ext/forecast/test_site_forecast.py has one"),
    (r"vrm (plan|pool)", "needs a batch system: tests/ext/allocations has saved, made-up and real ones"),
    (r"(qsub|qstat)( |$)", "needs a running manager: tests/ext/pbs/test_pbs_commands.py"),
    (r"vrm --on |ssh cluster |scp ", "needs another machine: tests/ext/remote/test_on.py has one"),
    (r"sbatch ", "needs Slurm: tests/live/manager/test_testbed_manager.py has one"),
    (r"vrm stop", "needs a running manager: tests/live/manager/test_manager.py"),
    (r"vrm$", "continues a run of before: tests/test_old_files.py"),
    (r"vrm npb build( --classes S,W --out npb/bin)?$", "minutes of compiling: tests/test_npb.py, "
     "tests/ext/measure/test_npb_build.py and tests/test_install.py build"),
    (r"vrm npb build --source", "needs the official archive: tests/ext/measure/test_npb_build.py has a small one"),
    (r"python3 npb/build\.py", "minutes of compiling: tests/test_npb.py"),
    (r"mpirun -np 4 npb/bin/ep", "the program is not built here: tests/test_npb.py"),
    (r"python tests/benchmarks/", "a benchmark, minutes on an idle machine"),
    (r"vrm experiment experiments/founding-live.yaml$", "ten minutes: tests/ext/study/test_experiment.py"),
    (r"vrm report runs/founding-live ", "reports that experiment: tests/ext/study/test_study.py"),
    (r"python studies/founding/", "needs recorded queues that are not part of vrm: "
     "tests/test_founding.py has made-up ones"),
    (r"vrm simulate QUEUE ", "QUEUE is one of those queues"),
    (r"sacct ", "needs Slurm's accounting: tests/ext/formats/data has a made-up dump"),
    (r"python studies/heterogeneous/run\.py", "minutes to hours: tests/test_heterogeneous.py has a short one"),
    (r"python studies/validation/run\.py", "minutes: tests/ext/study/test_validation.py has a short one"),
    (r"python studies/advice/run\.py", "half an hour, with traces that are not part of vrm: "
     "tests/ext/advice/test_advice_study.py has two windows"),
    (r"python studies/advice/live\.py", "half an hour on the test cluster"),
    (r"python studies/predict/run\.py", "needs published schedules that are not part of vrm: "
     "tests/simulation/test_estimates.py has made-up ones"),
    (r"python studies/energy/", "minutes, and jobs that are not part of vrm: tests/test_energy_studies.py has short ones"),
    (r"python studies/forecast/run\.py", "minutes to half an hour, with traces that are not part of vrm: "
     "tests/ext/forecast/test_accuracy.py has a short one"),
    (r"python studies/forecast/snapshots\.py", "needs snapshots of a site, or such a trace: "
     "tests/ext/forecast/test_accuracy.py has made-up ones"),
    (r"vrm forecast --score", "needs forecasts that have come true: tests/ext/forecast/test_score.py"),
    (r"vrm heatmap measure ", "minutes, on cores that do nothing else: tests/ext/measure/test_heatmap.py"),
    (r"vrm completion ", "changes the user's shell: tests/test_completion.py"),
]
"""The commands that are not run, and why."""

DEMONSTRATION = "vrm -c config/strip.yaml --once >/dev/null"
INSTEAD = {r"vrm npb build$": "mkdir -p bin && cp \"$TREE\"/npb/bin/*.x bin/",
           r"vrm run > run\.log &": "vrm run > run.log & until [ -e logs/state ]; do sleep 0.1; done",
           # The cluster's jobs are too large here: they are refused, and there is a run to look at.
           r"tail -f ": "vrm --once >/dev/null; [ $? = 1 ]"}
"""What stands in for a command that is not run, where later ones need what it makes."""

INSTALLS = "docs/how-to/extending.md"
"""Installs a package: tests/test_plugins.py does what it says, in an environment of its own."""

TRACE = "gzip -dc trace.swf.gz > trace.swf\n"
BEFORE: dict[str, str] = {
    "docs/guide/forecast.md": "mkdir -m 755 naps; printf '#!/bin/sh\\nexec sleep 100\\n' > naps/nap; chmod 755 naps/nap\n"
                        "for i in $(seq 9); do echo 'nap 1 300'; done > queue\n"
                        "printf '%s\\n' 'Applications: {Path: naps, Queue: queue}' 'Cores: 1' 'Nodes: 2' "
                        "'Sockets: 1' 'Emulate: true' 'Launcher: {Kind: direct}' > vrm.yaml\n"
                        "vrm run >/dev/null 2>&1 & manager=$!\n"
                        "until grep -qs '\"start\"' logs/journal; do sleep 0.1; done\n"
                        "kill $manager; wait $manager; true",
    "README.md": DEMONSTRATION, "docs/research/results.md": DEMONSTRATION,
    "docs/how-to/heatmap.md": "cp docs/how-to/heatmap.csv .",
    "docs/guide/simulation.md": TRACE + "cp docs/how-to/heatmap.csv .; cp queues/mix-poisson queue",
    "docs/reference/simulation.md": TRACE + "echo 'Classes: [{Count: 64, Cores: 8, Resources: {gpu: 4}}]' > cluster.yaml",
    "docs/reference/policies.md": TRACE,
    "docs/reference/workloads.md": f"cp {ROOT}/tests/ext/formats/data/sacct.txt .",
    "docs/how-to/nodes.md": "mkdir tasks && cp npb/bin/is.S.x tasks/solve && seq() { command seq 3; }\n"
                     "printf '%s\\n' 'Applications: {Path: tasks, Queue: queue}' "
                     "'Allocation: {Policy: pack}' 'Launcher: {Kind: direct}' > ensemble.yaml",
}
"""What the reader of a page has done before."""


def blocks(page: str) -> Iterator[str]:
    """The shell commands of a page, as they are fenced."""
    for found in re.finditer(r"^```(?:sh|bash)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S):
        yield found[1]


def commands(block: str) -> Iterator[str]:
    """Each whole command: a line, or the lines of a loop or with a document in them."""
    lines: list[str] = []
    for line in block.splitlines():
        lines.append(line)
        text = "\n".join(lines)
        checked = subprocess.run(["bash", "-n", "-c", text], stdin=subprocess.DEVNULL, text=True,
                                 stderr=subprocess.PIPE, check=False)
        if checked.returncode == 0 and "here-document" not in checked.stderr:
            if text.strip():
                yield text
            lines = []
    assert not lines, f"not whole: {lines}"


def bare(command: str) -> str:
    """A command of one line without its comment."""
    return re.sub(r"\s+# .*", "", command).strip() if "\n" not in command else command


def reason(command: str) -> str:
    """Why a command is not run, "" if it is."""
    return next((why for pattern, why in NOT_RUN if re.match(pattern, bare(command))), "")


def lublin_made_smaller(command: str) -> str:
    """Thousands of jobs in half a minute become a hundred or two at once; nothing else is changed."""
    return re.sub(r"(lublin:\d+):\d{4}\b", r"\1:200", command)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a user has, with stand-ins for programs."""
    tree = tmp_path / "vrm"
    tree.mkdir(mode=0o755)
    for name in ("config", "queues", "docs", "experiments", "jobs"):
        shutil.copytree(ROOT / name, tree / name)
    for path in [tree, *tree.rglob("*")]:  # a umask of 002 would have made them others' too
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)
    (tree / "npb/bin").mkdir(parents=True, mode=0o755)
    for app in ("bt", "cg", "ep", "ft", "is", "lu", "mg", "sp"):
        for problem_class in "SWA":
            program = tree / f"npb/bin/{app}.{problem_class}.x"
            program.write_text("#!/bin/sh\necho ' Time in seconds = 0.05'\n"
                               "echo ' Verification = SUCCESSFUL'\n")
            program.chmod(0o755)
    with gzip.open(tree / "trace.swf.gz", "wt") as trace:
        trace.write("; MaxProcs: 8\n" + "".join(
            f"{number} {number * 5} -1 30 {1 + number % 8} -1 -1 {1 + number % 8} 60 -1 1 1 1 1 1 "
            "-1 -1 -1\n" for number in range(1, 40)))
    return tree


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if list(blocks(page)) and page != INSTALLS])
def test_the_commands_of_a_page_run(page: str, tree: Path) -> None:
    script = "set -u\n" + BEFORE.get(page, "") + "\n"
    chosen = [command for block in blocks(page) for command in commands(block)]
    for command in chosen:
        command = next((other for pattern, other in INSTEAD.items() if re.match(pattern, bare(command))), command)
        if not reason(command):
            script += f"{lublin_made_smaller(command)}\nstatus=$?; [ $status = 0 ] || " \
                      f"{{ echo \"FAILED with $status\"; exit 1; }}\n"
    scratch = tree.parent / "home"  # so is /opt/vrm
    scratch.mkdir()
    env = {**mpirun_environment(), "HOME": str(scratch), "MPLBACKEND": "agg",
           "TREE": str(tree), "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
    done = subprocess.run(["bash", "-c", script.replace("/opt/vrm", str(scratch))], cwd=tree,
                          env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    if page == "docs/guide/tutorial.md":
        printed = set(map(without_figures, done.stdout.splitlines()))
        for line in (line for block in outputs(page) for line in block.splitlines()):
            assert without_figures(line) in printed, f"{line}\n{done.stdout[-3000:]}"


def outputs(page: str) -> Iterator[str]:
    """What a page shows below its commands, but for the screen, other machines' prompts and what depends on the machine."""
    for block in re.findall(r"^```\n\n```text\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S):
        yield re.sub(r"^found .*\n", "", block, flags=re.M)


CAST = ROOT / "docs" / "pictures" / "tutorial.cast"


def printed_by(cast: Path) -> list[str]:
    """The lines that a recording shows, after a check of its form (asciicast 2)."""
    header, *events = map(json.loads, cast.read_text().splitlines())
    assert header["version"] == 2 and header["width"] > 0 and header["height"] > 0
    assert all(kind == "o" for _, kind, _ in events)
    assert [when for when, _, _ in events] == sorted(when for when, _, _ in events)
    return "".join(text for _, _, text in events).replace("\r", "").splitlines()


def test_the_recording_is_of_the_tutorial() -> None:
    shown = printed_by(CAST)
    steps = (ROOT / "docs/guide/tutorial.md").read_text().partition("\n## 2.")[2].partition("\n## 6.")[0]
    for line in "".join(re.findall(r"^```sh\n(.*?)^```$", steps, re.M | re.S)).splitlines():
        assert any(each.endswith((f"$ {line}", f"> {line}")) for each in shown), line
    assert shown[-2:] == ["200", "$ "]
    assert not any("/tmp" in line for line in shown)


@pytest.mark.slow
def test_the_tutorial_can_be_recorded_again(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, CAST.with_name("tutorial_cast.py"), tmp_path], text=True, env=mpirun_environment(),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, check=False)
    assert done.returncode == 0, done.stdout
    shown = printed_by(tmp_path / CAST.name)
    assert "200 completed; everything is in logs" in shown and shown[-2:] == ["200", "$ "]
    assert "200 completed" in (tmp_path / "tutorial-cast.svg").read_text()


def without_figures(line: str) -> str:
    """The line without numbers, times and the directory."""
    return re.sub(r"[+-]?\d[\d.:]*", "#", re.sub(r"/\S*/study", "study", line)).rstrip()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/guide/cluster.md"])
def test_the_batch_scripts_of_a_page_are_written(page: str, tmp_path: Path) -> None:
    lines = re.findall(r"`(vrm script --\w+ -N [^`]*)`", (ROOT / page).read_text())
    assert len(lines) == 2
    (tmp_path / "bin").mkdir(mode=0o755)
    (tmp_path / "queue").write_text("")
    (tmp_path / "vrm.yaml").write_text("Applications: {Path: bin, Queue: queue}\nLog: log\n")
    for line in lines:
        done = warm.run(line.split()[1:], cwd=tmp_path, env=mpirun_environment(), stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
    assert "#SBATCH" in (tmp_path / "vrm.slurm").read_text()
    assert "#PBS" in (tmp_path / "vrm.pbs").read_text()


def test_every_reason_is_wanted() -> None:
    """What no page has any more goes from the list."""
    all_commands = [bare(command) for page in PAGES for block in blocks(page)
                    for command in commands(block)]
    for pattern, _ in NOT_RUN:
        assert any(re.match(pattern, command) for command in all_commands) or (
            "completion" in pattern), pattern


@pytest.mark.slow
def test_options_and_commands_that_are_named_exist() -> None:
    """Of `vrm COMMAND --option` in the text: the command, and the option in its help."""
    def help_of(*words: str) -> str:
        return warm.run(["help", *words, "--all"], stderr=subprocess.STDOUT).stdout

    general = help_of()
    groups = {"npb", "heatmap", "malleable", "energy", "learned"}
    seen: dict[str, str] = {}
    for page in PAGES:
        if page == "CHANGELOG.md":
            continue  # also of commands that are gone
        for found in re.finditer(r"`vrm ([a-z][^`\n]*)`", (ROOT / page).read_text()):
            words = found[1].replace("\\|", " ").split()
            name = words[0].rstrip(",")
            assert re.search(rf"^  {name} ", general, re.M), f"{page}: vrm {found[1]}"
            key = " ".join(words[:2]) if name in groups and len(words) > 1 else name
            if key not in seen:
                seen[key] = help_of(*key.split())
            for option in re.findall(r"(?<![\w=-])--[a-z][a-z-]+", found[1].partition(" -- ")[0]):
                assert option in seen[key], f"{page}: vrm {found[1]}: no {option}"


def anchor(heading: str) -> str:
    """The anchor that a heading gets."""
    plain = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, fragment = target.partition("#")
        goal = (path.parent / name).resolve() if name else path
        assert goal.exists(), f"{page}: {target}"
        if fragment and goal.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", goal.read_text(), re.M)
            assert fragment in map(anchor, headings), f"{page}: {target}"


def test_every_page_is_linked() -> None:
    """From README.md or its list of all pages, or from a page that is."""
    seen, new = set(), {ROOT / "README.md"}
    while new:
        seen |= new
        new = {(page.parent / target).resolve() for page in new
               for target in re.findall(r"\]\(([^)\s#]+\.md)", page.read_text())} - seen
    assert not {page for page in map(str, (ROOT / "docs").rglob("*.md")) if Path(page) not in seen}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_what_people_read_is_short() -> None:
    """All pages but reference and research."""
    pages = ["README.md", *(page for page in PAGES if re.match(r"docs/(?!reference|research)", page))]
    assert sum(len((ROOT / page).read_text().split()) for page in pages) <= 30_000


PRIVATE = re.compile(
    r"\b(?:mends?|mended|anew|beside|told|tells|goes on|go on|in the place of|of which|by which|so many|its word|stands"
    r"|whoever|so long after|end no more|lets? (?:\w+ )?jobs wait|go(?:es)? first|comes? first|comes? behind|come later"
    r"|is no whole|for ever|puts? off|as ever|next to nothing|for which|that is none|so it is|vacates?|takeup|afar"
    r"|no more(?! jobs| than)|hence|thereby|whereby|thereof|therein|whilst)\b|(?:[.;:]\s|^)[Ee]lse\b", re.M)
"""Words and turns that are not the field's."""


@pytest.mark.parametrize("page", PAGES)
def test_the_words_are_plain(page: str) -> None:
    text = re.sub(r"`[^`]*`|```.*?```", "", (ROOT / page).read_text(), flags=re.S)
    found = PRIVATE.findall(text)
    assert not found, f"{page}: {found}"


def test_the_words_of_messages_are_plain() -> None:
    """What vrm prints, logs, raises and shows as help: every text in its code but docstrings."""
    found = [f"{path.relative_to(ROOT)}:{line}: {words} in {text!r}"
             for path in sorted((ROOT / "vrm").rglob("*.py")) for line, text in texts(path)
             if (words := PRIVATE.findall(re.sub(r"`[^`]*`", "", text)))]
    assert not found, "\n".join(found)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The string literals of a module that have several words, with their lines; no docstring, no code."""
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
                and " " in node.value.strip() and " import " not in node.value):
            yield node.lineno, node.value


def test_the_texts_of_a_module_are_its_messages(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""A docstring that stands."""\nprint(f"job {1} waits for ever")\nraise ValueError("told twice")\n')
    assert sorted((line, bool(PRIVATE.search(text))) for line, text in texts(module)) == [(2, True), (3, True)]
