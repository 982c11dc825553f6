"""Runs worlds: `python3 tasks.py world --seeds 1000000 --minutes 10`; `--seed N` for one world with its trace; `--mutations`
for defects that must be found."""

from __future__ import annotations

import argparse
import collections
import gc
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from world import mutations
from world.machine import loading
from world.machine.kernel import K
from world.plan import FOLDS, JOBS, PLACES, SLURM, SOCKET

REGRESSIONS = Path(__file__).with_name("regressions.txt")
"""File of the seeds that have failed once, one line each, with the cause."""

EVERY = 2.0
"""Seconds between two reports of a worker."""

NOTHING = ("job", "start", "end", "again", "back", "intent", "revise", "lines", "input", "hold", "release", "lend", "lent", "regain", "regained",
           "grown", "run", "finished", "jobs", "lives")
"""The kinds of journal records that worlds can have."""


def begin(mutation: str = "") -> None:
    """Load vrm, with the changes of a mutation, into the simulated machine."""
    import greenlet
    if mutation:
        for module, old, new in mutations.found(mutation).changes:
            loading.PATCHES.setdefault(module, []).append((old, new))
    loading.load()
    K.main = greenlet.getcurrent()
    from world import truths
    truths.vrm()
    for name in loading.PATCHES:
        if name.startswith("vrm.ext."):  # not every world loads these
            importlib.import_module(name)
    one(0)
    if loading.PATCHES.keys() - loading.PATCHED:
        raise ValueError(f"no world loads {sorted(loading.PATCHES.keys() - loading.PATCHED)}")
    gc.collect()
    gc.freeze()
    gc.disable()


def one(seed: int, plan: Any = None) -> Any:
    """Run the world of a seed, or `plan`; return its outcome."""
    from world.aims import plan_of
    from world.world import run
    return run(plan or plan_of(seed))


# A worker.


def work(arguments: argparse.Namespace) -> int:
    """Run every n-th seed as a worker; report as lines of JSON on standard output."""
    from world.aims import focused, plan_of
    begin(arguments.mutation)
    first, step = map(int, arguments.worker.split(","))
    total: collections.Counter[str] = collections.Counter()
    kinds = {kind for kind in arguments.kind.split("+") if kind}
    end, said = time.monotonic() + arguments.minutes * 60, time.monotonic()
    for seed in range(first, arguments.first + arguments.seeds, step):
        plan = focused(plan_of(seed), focus_of(arguments))
        if not kinds <= set(plan.kinds):
            continue
        outcome = one(seed, plan)
        total.update(seeds=1, steps=outcome.steps, events=outcome.events, crashes=outcome.crashes, lives=outcome.lives)
        total.update({f"fault {kind}": count for kind, count in outcome.kinds.items()})
        total.update({f"record {event}": count for event, count in outcome.journal.items()})
        total.update({f"kind {kind}": 1 for kind in plan.kinds})
        now = time.monotonic()
        if outcome.wrong:
            print(json.dumps({"failed": seed, "wrong": outcome.wrong}), flush=True)
            total["failed"] += 1
        if now > said + EVERY or now > end or (outcome.wrong and arguments.stop):
            print(json.dumps({"total": total}), flush=True)
            total.clear()
            said = now
        if now > end or (outcome.wrong and arguments.stop):
            break
    print(json.dumps({"total": total}), flush=True)
    return 0


def workers(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Start all workers and yield their reports."""
    script = [sys.executable, __file__, "--first", str(arguments.first), "--seeds", str(arguments.seeds), "--minutes",
              str(arguments.minutes), *["--stop"] * arguments.stop, "--mutation", arguments.mutation, "--kind", arguments.kind, "--focus",
              arguments.focus]
    started = [subprocess.Popen([*script, "--worker", f"{arguments.first + number},{arguments.jobs}"], stdout=subprocess.PIPE,
                                text=True) for number in range(arguments.jobs)]
    import selectors
    try:
        with selectors.DefaultSelector() as selector:
            for each in started:
                assert each.stdout is not None
                selector.register(each.stdout, selectors.EVENT_READ)
            left = len(started)
            while left:
                for key, _ in selector.select():
                    line = key.fileobj.readline()  # type: ignore[union-attr]
                    if not line:
                        selector.unregister(key.fileobj)
                        left -= 1
                    elif str(line).startswith("{"):
                        yield json.loads(line)
        for each in started:
            if each.wait():
                yield {"failed": -1, "wrong": [f"a worker has ended with {each.returncode}"], "total": {"failed": 1}}
    finally:
        for each in started:
            each.kill()
            each.wait()


def many(arguments: argparse.Namespace) -> int:
    """Run many seeds and print a summary; return the exit status."""
    total: collections.Counter[str] = collections.Counter()
    failed: list[tuple[int, list[str]]] = []
    began = time.monotonic()
    for said in workers(arguments):
        if "failed" in said:
            failed.append((said["failed"], said["wrong"]))
            print(f"seed {said['failed']} failed: {said['wrong'][0][:1000]}", flush=True)
        total.update(said.get("total", {}))
    seconds = max(1e-9, time.monotonic() - began)
    rates = ", ".join(f"{total[name]:,} {name} ({total[name] / seconds:,.0f}/s)"
                      for name in ("seeds", "crashes", "lives", "events", "steps"))
    print(f"{seconds:.0f} s on {arguments.jobs} core(s), seeds from {arguments.first}: {rates}")
    print("faults: " + ", ".join(f"{name[6:]} {count:,}" for name, count in sorted(total.items()) if name.startswith("fault ")))
    print("worlds: " + ", ".join(f"{kind} {total[f'kind {kind}']:,}" for kind in (*PLACES, *JOBS, SLURM, SOCKET, FOLDS)))
    print("records: " + ", ".join(f"{event} {total[f'record {event}']:,}" for event in NOTHING))
    print(f"{total['failed']} failed")
    for seed in [seed for seed, _ in failed if seed >= 0][:arguments.shrink]:
        subprocess.run([sys.executable, __file__, "--seed", str(seed), "--mutation", arguments.mutation, "--focus",
                        arguments.focus], check=False)
    return int(bool(failed))


# One seed.


def focus_of(arguments: argparse.Namespace) -> list[str]:
    """Return the kinds of faults of the option `--focus`."""
    return [kind for kind in arguments.focus.split(",") if kind]


def kind_of(wrong: Sequence[str]) -> str:
    """Return the first 30 characters of what is wrong, without numbers, which differ between worlds."""
    last = wrong[0].strip().splitlines()[-1] if wrong else ""
    return re.sub(r"\d+", "", last.partition(", call ")[2].partition(": ")[2] or last)[:30]


def single(arguments: argparse.Namespace) -> int:
    """Run one seed; if it fails, print a minimal plan that still fails, and its trace."""
    from world.aims import focused, plan_of
    from world.shrinking import shrink
    begin(arguments.mutation)
    K.tracing = True
    if arguments.calls:
        loading.log_calls()
    plan = focused(plan_of(arguments.seed), focus_of(arguments))
    outcome = one(arguments.seed, plan)
    print(f"seed {arguments.seed}: {'failed' if outcome.wrong else 'passed'}; {outcome.steps} calls, {outcome.crashes} "
          f"crashes, {outcome.lives} lives, digest {outcome.digest:08x}")
    if outcome.wrong and not arguments.whole:
        kind = kind_of(outcome.wrong)
        smaller = shrink(plan, lambda candidate: kind_of(one(arguments.seed, candidate).wrong) == kind)
        print(f"of {len(plan.faults)} faults, {len(plan.acts)} acts and {len(plan.lines)} lines these are needed: "
              f"{len(smaller.faults)}, {len(smaller.acts)}, {len(smaller.lines)}")
        plan, outcome = smaller, one(arguments.seed, smaller)
    print(plan.told())
    if outcome.wrong or arguments.whole:
        print("\n".join(outcome.trace))
    print("\n".join(outcome.wrong))
    return int(bool(outcome.wrong))


def regressions() -> list[int]:
    """Return the seeds that have failed once."""
    return [int(line.split()[0]) for line in REGRESSIONS.read_text(encoding="utf-8").splitlines()
            if line.strip() and not line.startswith("#")]


def again(arguments: argparse.Namespace) -> int:
    """Run the seeds of REGRESSIONS; return the exit status."""
    begin()
    seeds = regressions()
    failed = [seed for seed in seeds if one(seed).wrong]
    print(f"{len(seeds)} seeds that had failed once: {len(failed)} fail{'s' * (len(failed) == 1)} {failed or ''}")
    return int(bool(failed))


def digests(arguments: argparse.Namespace) -> int:
    """Print the digests of the traces of some seeds."""
    begin()
    print(json.dumps(dict(sorted([(seed, one(int(seed)).digest) for seed in arguments.digests.split(",")]))))
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000_000, help="how many worlds at most")
    parser.add_argument("--minutes", type=float, default=1.0, help="for how long at most")
    parser.add_argument("--first", type=int, default=-1, help="the first seed; others each time unless given")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--kind", default="", help=f"only worlds of this kind, or with such jobs, as hosts+lends: of {', '.join((*PLACES, *JOBS, SLURM, SOCKET, FOLDS))}")
    parser.add_argument("--focus", default="", help="what most faults are, as machine,full@exit (see aims.py)")
    parser.add_argument("--stop", action="store_true", help="end at the first failure")
    parser.add_argument("--shrink", type=int, default=1, help="failures that are shown with their traces")
    parser.add_argument("--seed", type=int, help="this world, with its trace where it fails")
    parser.add_argument("--whole", action="store_true", help="with --seed: all of it, not shrunk")
    parser.add_argument("--calls", action="store_true", help="with --seed: the trace has each system call")
    parser.add_argument("--regressions", action="store_true", help="the seeds that have failed once")
    parser.add_argument("--mutations", action="store_true", help="put back defects, each of which must be found")
    parser.add_argument("--digests", default="", help="only print what the traces of these seeds are known by")
    parser.add_argument("--skip", type=int, default=0, help="with --mutations: so many of them")
    parser.add_argument("--mutation", default="", help=argparse.SUPPRESS)
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.worker:
        return work(arguments)
    if arguments.digests:
        return digests(arguments)
    if arguments.seed is not None:
        return single(arguments)
    if arguments.regressions:
        return again(arguments)
    if arguments.first < 0:
        arguments.first = time.time_ns() // 1_000_000 % 1_000_000_000_000
    if arguments.mutations:
        return mutations.all_found(arguments)
    return many(arguments)


if __name__ == "__main__":
    sys.exit(main())
