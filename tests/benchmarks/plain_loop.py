"""What counting alone costs: FCFS or EASY on one-core nodes, as one plain loop over a trace.

    python tests/benchmarks/plain_loop.py TRACE none|easy [PROCESSORS]

The reference for the speed of `vrm simulate`: no placements, no policies, no records, only numbers
in local variables and a heap of ends. It reads the trace as the simulator does and prints the jobs,
the mean wait and the same hash of all start times. It stays as it is, so that ratios to it can be
compared.
"""

import hashlib
import heapq
import json
import sys
from bisect import insort
from dataclasses import replace

from vrm.workload.swf import Trace


def main(path, backfilling, processors=0):
    """Schedule the trace and print the figures as JSON."""
    trace = Trace(path)
    processors = processors or trace.processors
    trace.rules = replace(trace.rules, largest=processors)
    submits, ids, sizes, runs, estimates = [], [], [], [], []
    for job, run, *_ in trace:
        submits.append(job.submit)
        ids.append(job.id)
        sizes.append(job.procs)
        runs.append(run)
        estimates.append(job.estimate)
    easy = backfilling == "easy"
    starts = [0] * len(ids)
    free, at, total = processors, 0, len(ids)
    queue, first = [], 0            # jobs by their number, in order; `first` is the head's place
    ends, expected = [], []         # a heap of (end, job); sorted (expected end, job)
    while at < total or ends:
        now = submits[at] if at < total else ends[0][0]
        if ends and ends[0][0] < now:
            now = ends[0][0]
        while ends and ends[0][0] == now:
            job = heapq.heappop(ends)[1]
            free += sizes[job]
            if easy:
                expected.remove((starts[job] + estimates[job], job))
        while at < total and submits[at] == now:
            queue.append(at)
            at += 1
        while first < len(queue) and sizes[queue[first]] <= free:
            job = queue[first]
            first += 1
            free -= sizes[job]
            starts[job] = now
            heapq.heappush(ends, (now + runs[job], job))
            if easy:
                insort(expected, (now + estimates[job], job))
        if first == len(queue):
            queue.clear()
            first = 0
            continue
        if first > 1000 and first * 2 > len(queue):
            del queue[:first]
            first = 0
        if not easy or not free or first + 1 == len(queue):
            continue
        wanted, spare, shadow = sizes[queue[first]], free, None
        for end, job in expected:
            if shadow is not None and end > shadow:
                break
            spare += sizes[job]
            if shadow is None and spare >= wanted:
                shadow = end
        spare -= wanted
        started = []
        for place in range(first + 1, len(queue)):
            job = queue[place]
            size = sizes[job]
            if size > free:
                continue
            if now + estimates[job] > shadow:
                if size > spare:
                    continue
                spare -= size
            free -= size
            starts[job] = now
            heapq.heappush(ends, (now + runs[job], job))
            insort(expected, (now + estimates[job], job))
            started.append(place)
            if not free:
                break
        for place in reversed(started):
            del queue[place]
    waits = sum(start - submit for start, submit in zip(starts, submits))
    digest = hashlib.sha256("".join(
        f"{number} {start}\n" for number, start in sorted(zip(ids, starts))).encode())
    print(json.dumps({"jobs": total, "start_hash": digest.hexdigest()[:16],
                      "average_wait": waits / max(1, total)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
