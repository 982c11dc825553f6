"""`vrm malleable check` on programs that are malleable, and on such as are not."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import Site, wait_until
from vrm.live.launch.direct import DirectLauncher
from vrm.ext.lending.check import CheckRun, Trial, difference
from vrm.ext.lending.check import check as judge
from vrm.ext.lending.nodes import lending
from vrm.live.nodes.topology import read_topology
from vrm.model import RankSlot

HERE = Path(__file__).parent

PROGRAM = r"""
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* KIND ROUNDS: right, stale (an array of the size of the start), refuses, shows (the number of threads),
 * fails, verifies (wrongly after a change) */
int main(int argc, char **argv)
{
    const char *kind = argv[1];
    int start = omp_get_max_threads(), changed = 0;
    double sum = 0.0, *part = calloc((size_t)start, sizeof *part);

    if (!strcmp(kind, "fails"))
        return 7;
    printf("begun at %ld by process %ld\n", (long)time(NULL), (long)getpid());
    for (int round = 0; round < atoi(argv[2]); round++) {
        int most = strcmp(kind, "stale") ? omp_get_max_threads() : start;
#pragma omp parallel
        {
            int me = omp_get_thread_num();
            part[me] = 0.0;
#pragma omp for
            for (int i = 0; i < 40000; i++)
                part[me] += 1.0 / (1.0 + i);
#pragma omp master
            changed |= omp_get_num_threads() != start;
        }
        for (int i = 0; i < most; i++)
            sum += part[i];
        if (!strcmp(kind, "refuses") && changed) {
            fprintf(stderr, "Thread number has changed\n");
            return 3;
        }
    }
    printf("sum %.12e\n", sum);
    if (!strcmp(kind, "shows") && changed)
        printf("it has changed\n");
    if (!strcmp(kind, "verifies"))
        printf(" Verification = %s\n", changed ? "UNSUCCESSFUL" : "SUCCESSFUL");
    return argc < 3;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_verdicts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.root / "kinds.c").write_text(PROGRAM)
    if subprocess.run(["gcc", "-O1", "-fopenmp", "kinds.c", "-o", site.bin / "kinds"], cwd=site.root,
                      capture_output=True).returncode:
        pytest.skip("no gcc with OpenMP")
    (site.root / "serial.c").write_text(
        '#include <stdio.h>\n#include <unistd.h>\n#include <stdlib.h>\nint main(void)\n{\n    double x = 0;\n'
        '    for (long i = 0; i < 40000000; i++)\n        x += 1.0 / (1.0 + i);\n    printf("%.9f\\n", x);\n'
        '    return 0;\n}\n')
    subprocess.run(["gcc", "serial.c", "-o", site.bin / "serial"], cwd=site.root, check=True)
    site.env["XDG_CACHE_HOME"] = str(site.root / "cache")
    site.config(Launcher={"Kind": "direct"})

    def files() -> set[str]:
        return {name for name in os.listdir(lending.PLACE) if name.startswith("vrm-lending.") and ".check-" in name}

    before = files()  # perhaps of checks that were killed

    def check(*words: str) -> subprocess.CompletedProcess[str]:
        return site.run("malleable", "check", *words)

    # So many rounds that also a busy machine follows many of the changes; each has much to do between its barriers.
    right = check("kinds", "--threads", "4", "--", "right", "1500")
    assert right.returncode == 0, right.stdout + right.stderr
    assert "kinds: malleable: correct after 100 changes" in right.stdout and "1, 2, 3, 4 threads" in right.stdout
    assert "malleable=1 in a line, or Applications: {Malleable: [kinds]}" in right.stdout
    done = check("kinds", "--threads", "4", "--", "refuses", "400")
    assert done.returncode == 1 and "kinds: not malleable: after " in done.stdout
    assert done.stdout.endswith(" changes it ended with status 3: Thread number has changed\n")
    machine = read_topology()
    trial = Trial(DirectLauncher(dict(site.env), {}, {machine.host: machine}), site.bin / "kinds", (),
                  [RankSlot(0, 0, 0, (0,))], [machine.node], {"OMP_NUM_THREADS": "4"}, changes=12)
    monkeypatch.setenv("XDG_CACHE_HOME", site.env["XDG_CACHE_HOME"])
    for kind, reason in (("stale", "of its output says "), ("shows", "it wrote 4 lines, not 3"),
                         ("verifies", "its verification says UNSUCCESSFUL")):
        verdict = judge(replace(trial, arguments=(kind, "400")))
        assert verdict.kind == "not malleable" and reason in verdict.reason, verdict
    verdict = judge(replace(trial, arguments=("fails", "1")))
    assert (verdict.kind, verdict.reason) == (
        "unchecked", "it fails without any change: it ended with status 7")
    done = check("serial", "--changes", "5")
    assert done.returncode == 0 and "serial: malleable by affinity alone: correct after 5 changes" in done.stdout
    done = check("nothing")
    assert done.returncode == 2 and "is not a program that may be run; build it" in done.stderr
    done = check("kinds", "-n", "5000")
    assert done.returncode == 2 and "5000 ranks do not fit on this machine's " in done.stderr
    left = files() - before
    wait_until(lambda: not left & files(), "nothing of these checks, nor of others that run beside them, is left")


def ran(output: str) -> CheckRun:
    return CheckRun(1.0, 0, output, None)


@pytest.mark.parametrize("first, second, now, wanted", [
    ("x 1.5\n", "x 1.5\n", "x 1.5000001\n", ""),
    ("x 1.5\n", "x 1.5\n", "x 1.51\n", "line 1 of its output says 1.51, not 1.5"),
    ("x 1.5 at 12:01\n", "x 1.5 at 12:02\n", "x 1.5 at 13:00\n", ""),  # differs by itself
    ("n 3\n", "n 3\n", "n 4\n", "line 1 of its output says 4, not 3"),  # a whole number is exact
    ("a=1.0e-3,b\n", "a=1.0e-3,b\n", "a=1.00000001e-3,b\n", ""),
    ("a=1.0e-3,b\n", "a=1.0e-3,b\n", "a=1.0e-3,c\n", "line 1 of its output says a=1.0e-3,c, not a=1.0e-3,b"),
    ("a\nb\n", "a\nb\n", "a\n", "it wrote 2 lines, not 3"),
    ("a b\n", "a b\n", "a b c\n", "line 1 of its output is 'a b c', not 'a b'"),
    ("1D+02\n", "1D+02\n", "1.0D+02\n", "")])
def test_outputs_are_compared(first: str, second: str, now: str, wanted: str) -> None:
    assert difference([ran(first), ran(second)], ran(now), 1e-6) == wanted
