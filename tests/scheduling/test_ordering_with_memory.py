"""Orderings of users that are objects: what they remember, and what they observe."""

import pytest

from vrm.api import Cluster, Job, Machine, PolicyError, Recording, Rules, Submission, Watcher, compose, simulate

MINE = '''
from vrm.api import Watcher

class Fair(Watcher):
    """Who has had fewer jobs comes first."""
    def __init__(self):
        self.had = {}
    def booked(self, booking):
        self.had[booking.job.user] = self.had.get(booking.job.user, 0) + 1
    def __call__(self, job, now, nodes):
        return -self.had.get(job.user, 0)

class Plain:
    def __call__(self, job, now, nodes):
        return job.procs

class Needs:
    def __init__(self, what):
        pass

class Idle:
    pass

class Fails(Fair):
    def released(self, booking):
        return booking.nothing

fair = Fair()

def leaves(job, now, nodes):
    raise SystemExit(0)
'''


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    (tmp_path / "remembering.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "remembering", raising=False)
    return __import__("remembering")


def jobs():
    """Ann submits four jobs, then Bob two; one runs at a time."""
    return [Submission(Job(number, "a", 1, 10.0, 0.0, user=user), 10.0)
            for number, user in enumerate(["ann"] * 4 + ["bob"] * 2, 1)]


def order(**given):
    record = given.pop("record", Recording())
    outcome = simulate(jobs(), Machine.of(1), Rules(**given), record=record)
    return [row.id for row in outcome.jobs]


FAIR = [1, 5, 2, 6, 3, 4]


def test_an_ordering_given_by_the_name_of_its_class_observes_the_run(mine):
    assert order(algorithm="remembering:Fair") == FAIR
    assert order(algorithm="remembering:Fair") == FAIR, "each run has an object of its own"


def test_an_ordering_that_is_an_object_or_a_class_observes_the_run(mine):
    assert order(algorithm=mine.Fair()) == FAIR
    assert order(algorithm=mine.Fair) == FAIR


def test_an_ordering_that_is_also_among_the_watchers_is_notified_once(mine):
    share = mine.Fair()
    assert order(algorithm=share, record=Recording(watchers=[share])) == FAIR
    assert share.had == {"ann": 4, "bob": 2}


def test_the_same_object_composed_twice_is_notified_once(mine):
    share, cluster = mine.Fair(), Cluster.regular(1, 1, 1)
    for _ in range(2):
        compose(Rules(algorithm=share), cluster)
    assert len(cluster.watchers) == 1


def test_a_class_that_observes_nothing_is_an_ordering_too():
    assert order(algorithm="remembering:Plain") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("text, says", [
    ("remembering:fair", "name its class \\(Fair\\)"),
    ("remembering:Needs", "`remembering:Needs` failed: TypeError: .*missing 1 required"),
    ("remembering:leaves", "`remembering:leaves` failed at .*remembering.py:31: SystemExit: 0"),
    ("remembering:Idle", "makes no ordering: give a function"),
    ("remembering:Fails", "`remembering:Fails` failed at .*remembering.py:26: AttributeError"),
])
def test_what_cannot_be_an_ordering_is_one_line(text, says):
    with pytest.raises(PolicyError, match=says):
        order(algorithm=text)


def test_a_dispatcher_may_be_given_as_its_class():
    class Head:
        def schedule(self, step):
            for job in step.waiting:
                if step.fits(job):
                    yield job

    assert order(backfill=Head) == [1, 2, 3, 4, 5, 6]


def test_watchers_of_a_record_still_observe():
    class Seen(Watcher):
        starts = 0

        def booked(self, booking):
            self.starts += 1

    seen = Seen()
    order(record=Recording(watchers=[seen]))
    assert seen.starts == 6
