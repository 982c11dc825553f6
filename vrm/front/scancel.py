"""`scancel`: jobs are ended, or get a signal."""

from __future__ import annotations

from vrm.front import words
from vrm.front.answers import Answer, Call, Refused
from vrm.front.counter import Counter
from vrm.front.jobs import Job
from vrm.front.options import Options
from vrm.front.sbatch import signal_number

OPTIONS = Options("scancel", """
A account v
b batch n
. ctld n -
c cron n -
f full n
. help n
H hurry n -
i interactive n -
. me n
M clusters v -
n name v
. jobname v name
p partition v
q qos v
Q quiet n
R reservation v
. sibling v -
s signal v
t state v
u user v
. usage n help
v verbose n
V version n
w nodelist v !
. wckey v
""", "[options] [ID ...]")

_FILTERS = ("account", "me", "name", "partition", "qos", "reservation", "state", "user", "wckey")


def scancel(call: Call, counter: Counter) -> Answer:
    """End the jobs that are named, or those that all options describe."""
    given, rest = OPTIONS.parse(call.arguments)
    if not rest and not any(key in given for key in _FILTERS):
        raise OPTIONS.error("No job identification provided")
    number = 0
    if "signal" in given:
        try:
            number = signal_number(given["signal"])
        except ValueError as error:
            raise OPTIONS.error(f"Unknown job signal: {given['signal']}") from error
    said: list[str] = []
    wrong = 0
    jobs: dict[int, Job] = {}
    for word in rest:
        if "." in word:
            raise OPTIONS.error(f"{word}: vrm ends whole jobs; a step ends with its job, or by a signal to its srun")
        try:
            found, missing = words.find(counter, word)
        except ValueError as error:
            raise OPTIONS.error(f"Invalid job id {word}") from error
        jobs.update((job.id, job) for job in found)
        if missing:
            wrong += 1
            said.append(f"scancel: error: Kill job error on job id {', '.join(missing)}: Invalid job id specified")
    if not rest:
        jobs = {job.id: job for job in counter.jobs(ended=False)}
    for job in _matching(list(jobs.values()), given, counter):
        if job.state.ended:
            continue
        if "verbose" in given:
            said.append(f"scancel: Terminating job {job.shown_id}")
        try:
            counter.cancel(job.id, number)
        except Refused as error:
            wrong += 1
            said.append(f"scancel: error: Kill job error on job id {job.shown_id}: {error}")
    if "quiet" in given:
        said.clear()
    return Answer(err="".join(f"{line}\n" for line in said), code=int(bool(wrong)))


def _matching(jobs: "list[Job]", given: "dict[str, str]", counter: Counter) -> "list[Job]":
    """Those of the jobs that the options describe."""
    site = counter.site
    if "user" in given and given["user"] not in (site.user, str(site.uid)) or "account" in given or "wckey" in given:
        return []
    if "name" in given:
        names = given["name"].split(",")
        jobs = [job for job in jobs if job.name in names]
    if "partition" in given:
        jobs = [job for job in jobs if words.partition(job, site) in given["partition"].split(",")]
    if "qos" in given:
        jobs = [job for job in jobs if given["qos"] == "normal"]
    if "reservation" in given:
        jobs = [job for job in jobs if job.details.more.get("reservation") == given["reservation"]]
    if "state" in given:
        try:
            states = words.states_of(given["state"])
        except ValueError as error:
            raise OPTIONS.error(f"Invalid job state specified: {error}") from error
        jobs = [job for job in jobs if states is None or words.state(job) in states]
    return jobs
