"""Jobs by their names: in what is said of them, and wherever an id is taken; and arrays of cases."""

from __future__ import annotations

from conftest import Site, wait_until


def test_a_run_of_named_jobs(site: Site) -> None:
    """Two jobs called `wide`, one for each case, one that waits by name."""
    site.config(Launcher={"Kind": "direct"}, Cores=2, Allocation={"Policy": "pack"})
    site.program("a.x", 'echo "$VRM_ARRAY_ITEM in $(basename "$PWD")"\n')
    site.program("long.x", 'while [ ! -e "$0.go" ]; do sleep 0.02; done\n')
    for case in "uv":
        (site.root / "cases" / case).mkdir(parents=True)
    site.lines("long.x 2 600 0 name=first", "long.x 1 60 0 name=wide", "long.x 2 60 0 name=wide",
               "a.x 1 10 0 each=cases/* dir=%e name=case%i", "a.x 1 10 0 name=last after=case1")
    manager = site.start()
    wait_until(lambda: "#0 long.x first  starts" in site.said(manager) and len((site.state() or {"jobs": ()})["jobs"]) > 3, "it runs")
    assert "#0 first" in site.run("status").stdout
    assert "wide" in site.run("explain").stdout and "#1 long.x wide on" in site.run("explain", "wide").stdout
    assert "long.x wide" in site.run("forecast").stdout
    for words in (("hold", "wide"), ("release", "wide"), ("cancel", "wide")):
        done = site.run(*words)
        assert done.returncode == 0, done.stderr
    several = site.run("log", "wide")
    assert several.returncode == 2 and "2 jobs are called `wide`: 1-2" in several.stderr
    unknown = site.run("cancel", "nobody")
    assert unknown.returncode == 2 and "no job has this name" in unknown.stderr
    path = site.run("submit", "bin/a.x", "1", "10")  # it is in Applications.Path
    assert path.returncode == 0 and "job 6: a.x waits" in path.stdout, path.stderr
    (site.bin / "long.x.go").touch()
    assert site.run("wait", "first").returncode == 0
    said = site.finish(manager)
    assert site.statuses() == {0: "completed", 1: "cancelled", 2: "cancelled", **dict.fromkeys((3, 4, 5, 6), "completed")}
    assert "#4 a.x case1  completed" in said and "#1 long.x wide  cancelled" in said
    assert site.run("log", "case1").stdout == "cases/v in v\n"
    assert site.rows()[3].dir == str(site.root / "cases/u") and site.rows()[3].name == "case0"


def test_check_looks_at_directories(site: Site) -> None:
    site.config(Launcher={"Kind": "direct"}, Allocation={"Policy": "pack"})
    site.program("a.x", "exit 0\n")
    (site.root / "case1").mkdir()
    site.lines("a.x 1 10 0 array=1-3 dir=case%i", "a.x 1 10 0 dir=case1", "a.x 1 10 0 dir=later after=1",
               "a.x 1 10 0 each='case*' dir=%e")
    said = site.run("check")
    assert said.returncode == 1 and "1 of 4 lines can never run" in said.stdout
    assert f"dir: {site.root}/case2 and 1 more of 3: no such directory" in said.stdout
