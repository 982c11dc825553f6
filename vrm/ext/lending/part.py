"""Running jobs lend cores: from a decision or a command to ranks that have left them, and back.

To lend: the intent is in the journal, the agents on all nodes of the lender narrow its ranks and answer
that no thread of it is left on the lent cores, then the borrower starts. To take back: the borrower has
ended and none of its processes is left, then the agents widen the lender's ranks. Every order has a
number (epoch) that counts up for each lender, so an order that is given again does no harm. Where a node
does not answer, the lend is undone and the borrower waits.
"""

from __future__ import annotations

import math
from typing import Any
from collections.abc import Collection, Mapping

from vrm.ext.lending.job import FollowingCores
from vrm.ext.lending.nodes import lending
from vrm.ext.lending.orders import MASKS, CoreOrder, Masks, confine, pause, stops
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.jobs.launches import Launches
from vrm.live.manager.part import Closed, JobAsked, JobLeft, Obey, Part, ProgramPrepared, Stopped
from vrm.live.manager.jobs.running import Running
from vrm.model import Job, JobState, Placement
from vrm.model.sharing import core_share
from vrm.model.sharing.core_share import NOBODY, Loan
from vrm.model.forms.hosts import fold as fold_nodes
from vrm.run.entry import Entry, LifeError
from vrm.run.control import Command
from vrm.run.journal.past import Past
from vrm.run.lending import LENDING, LENT, REGAINING, Lend
from vrm.scheduling import Start
from vrm.ext.lending.offers import NoOffer, borrowed, offer, reserved

YOUNG = 15.0
"""Seconds after its start in which ranks of a lender that lends from its start on may be yet to come: until
all are there, the order is given again."""

PAUSE = 0.25
"""Seconds between these orders."""

PATIENCE = 20.0
"""Seconds in which the nodes of a lender must have answered an order."""

AGAIN = 5.0
"""Seconds after which a lender that could not be given its cores back is given them again."""


class LendingPart(Part):
    """Moves cores between running jobs. `coming` are the starts on lent cores that are not clear yet."""

    observes = (Masks, Closed, JobAsked, JobLeft, ProgramPrepared, Stopped)

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.ends = live.part(Ends)
        self.launches = live.part(Launches)
        self.coming: dict[int, Start] = {}
        self._orders: dict[int, CoreOrder] = {}
        self._following = FollowingCores(live)

    def recall(self, past: Past) -> None:
        """An earlier manager may have left files on the nodes for programs that follow their cores."""
        if past.state.lends.epochs or any(job.malleable for job, _ in past.running):
            self.live.watch.know(MASKS)

    def deadline(self, now: float) -> float:
        """When an order is to be given, or must have been answered."""
        return min((order.until if order.sent else min(order.until, order.after)
                    for order in self._orders.values()), default=math.inf)

    def busy(self) -> bool:
        """Whether jobs are about to start on lent cores."""
        return bool(self.coming)

    def observe(self, event: object) -> None:
        """Take notice of ranks that have moved, of nodes that do not answer, and of the end of all starts."""
        if isinstance(event, Masks):
            self._answered(event)
        elif isinstance(event, Closed):
            self._lost(event.node)
        elif isinstance(event, JobAsked):
            self._settle(event.job_id)
        elif isinstance(event, JobLeft) and event.job.malleable:
            lending.remove(lending.folder(self.live.launcher.run_id, event.job.id))
        elif isinstance(event, ProgramPrepared) and event.booking.job.malleable:
            self.live.watch.know(MASKS)
            self._following.give(event)
        elif isinstance(event, Stopped):
            for job_id in list(self.coming):
                self._settle(job_id)

    def _settle(self, job_id: int) -> None:
        if job_id in self.coming:
            self._undo(job_id, "")

    def commands(self) -> Mapping[str, Obey]:
        """To lend cores, and to take them back."""
        return {"lend": self._obey}

    def _obey(self, command: Command, name: str) -> Command:
        lender, to = int(command["id"]), command.get("to")
        for job_id in (lender, *((int(to),) if to is not None else ())):
            self.ends.settle(job_id)
        try:
            text = (self.back(lender, command=name) if command.get("back") else
                    self.ask(lender, int(command["cores"]), None if to is None else int(to), command=name))
        except LifeError as error:
            return {"ok": False, "text": str(error)}
        return {"ok": True, "text": text}

    def moving(self, job_id: int) -> bool:
        """Whether the ranks of a job are being moved: they may be here or there."""
        return job_id in self._orders

    # What people ask.

    def ask(self, lender: int, cores: int, to: int | None, **origin: Any) -> str:
        """A running job is to lend so many cores on each of its nodes (0: half) to a waiting one, or
        (None) to the node. A sentence that says what is done; LifeError where it cannot be."""
        live, running = self.live, self._lender(lender)
        cluster, now = live.cluster, live.now
        try:
            found = offer(cluster, lender, cores)
        except NoOffer as error:
            raise LifeError(str(error)) from error
        where = fold_nodes([cluster.nodes[node].name for node in running.booking.placement.nodes])
        number = found.cores.bit_count() // len(running.booking.placement.nodes)
        what = f"job {lender} lends {number} core{'s' * (number > 1)} on {where}"
        if to is None:
            self._keep_clear(reserved(cluster, [(lender, found.cores)], now))
            live.state.lending.lend(Loan(lender, NOBODY, found.cores, now, math.inf), **origin)
            self._order(lender)
            return f"{what} to no job: its ranks leave them free until `vrm lend {lender} --back`"
        job = self.waiting(to).job
        if job.request.parts:
            raise LifeError(f"job {to} has several programs, and starts on cores of its own")
        placement = borrowed(job, cluster, [(lender, found.cores)], shrinks=job.malleable)
        if placement is None:
            raise LifeError(
                f"job {to} needs {job.procs} rank(s) of {job.cores} core(s) and what else it asks for, and "
                f"does not fit on {number} core(s) of {where}: lend more with --cores, or submit it with "
                "--malleable, so that its ranks may have fewer cores")
        self._keep_clear(reserved(cluster, [(lender, found.cores)], now, job, placement))
        self.borrow(job, placement, **origin)
        fewer = (f" with {placement.width} core{'s' * (placement.width > 1)} for each rank, not "
                 f"{job.cores}" if placement.width < job.cores else "")
        return (f"{what} to job {to}, which starts{fewer} when job {lender} has left "
                f"{'them' if number > 1 else 'it'}")

    def borrow(self, job: Job, placement: Placement, ends: Collection[int] = (), **origin: Any) -> None:
        """A waiting job starts on cores that running jobs lend, as soon as they are clear. `ends`: those of the lenders
        that are ended instead, and wait again. LifeError where the job or a lender would run too long."""
        live, now = self.live, self.live.now
        first = next(iter(live.state.queue.in_order(now)), None)
        booking = live.cluster.book(job, placement, now)
        live.state.queue.remove_started([job])
        for loan in live.cluster.loans.of_borrower(job.id):
            live.state.lending.lend(loan, **origin)
        late = self._too_late(job.id, ends)
        for lender in ends if not late else ():
            self.ends.end_job(live.running[lender], "requeue", **origin)
        self._come(Start(booking, first is not job), late)
        if late:
            raise LifeError(f"nothing is lent to job {job.id}: {late}")

    @staticmethod
    def _keep_clear(why: str) -> None:
        if why:
            raise LifeError(f"{why}; see `vrm reserve --list`")

    def _lender(self, job_id: int) -> Running:
        entry = self.live.state.entry(job_id)
        running = self.live.running.get(job_id)
        if running is None or running.intent:
            raise LifeError(f"job {job_id} does not run: it is {entry.state.value}")
        if running.former or running.away:
            raise LifeError(f"job {job_id} runs on other nodes than these, or under another manager")
        if entry.job.payload.script:
            raise LifeError(f"job {job_id} is a script, and scripts lend no cores")
        if not entry.job.malleable:
            raise LifeError(f"job {job_id} is not malleable: submit it with --malleable (queue line: "
                            "malleable=1) if its program may run on fewer cores; see `vrm malleable`")
        return running

    def waiting(self, job_id: int) -> Entry:
        entry = self.live.state.entry(job_id)
        if job_id not in self.live.state.queue or job_id in self.live.state.queue.outside:
            why = ("it is held, or waits for other jobs" if entry.state is JobState.QUEUED
                   else f"it is {entry.state.value}")
            raise LifeError(f"job {job_id} cannot start now: {why}")
        if self.live.phase != "running":
            raise LifeError("the manager is stopping and starts nothing more")
        return entry

    def back(self, lender: int, **origin: Any) -> str:
        """A job takes back what it lends to the node or to jobs that have not started; LifeError where
        there is nothing of that kind."""
        live = self.live
        live.state.entry(lender)
        lends = [each for each in live.state.lends.of_lender(lender) if each.phase != REGAINING]
        if not lends:
            raise LifeError(f"job {lender} lends no cores")
        done, busy = 0, []
        for each in lends:
            if each.borrower == NOBODY:
                live.state.lending.regain(each.number, live.now, "taken back", **origin)
                done += 1
            elif each.borrower in self.coming:
                self._undo(each.borrower, f"job {lender} takes its cores back")
                done += 1
            else:
                busy.append(each.borrower)
        self._order(lender)
        runs = ", ".join(map(str, busy))
        if not done:
            raise LifeError(f"job {runs} runs on the cores of job {lender} until it ends; `vrm requeue "
                            f"{busy[0]}` lets it wait again, `vrm cancel {busy[0]}` ends it")
        return f"job {lender} takes its cores back" + (f", but those on which job {runs} runs" if busy
                                                       else "")

    # What is decided.

    def starts(self, start: Start, now: float) -> bool:
        """Whether a job starts on lent cores."""
        if start.booking.placement.lease is None:
            return False
        self.add(start)
        return True

    def add(self, start: Start) -> None:
        """The dispatcher has decided that a job starts on lent cores. The intent is in the journal's queue."""
        late = self._too_late(start.job.id)
        if late:  # or it would be decided again at once
            self.live.cluster.loans.unwilling.update(
                each.lender for each in self.live.state.lends.of_borrower(start.job.id))
        self._come(start, late)

    def _come(self, start: Start, late: str) -> None:
        """A job starts on lent cores as soon as they are clear, unless it is too late for that."""
        self.coming[start.job.id] = start
        if late:
            self._undo(start.job.id, late)
            return
        for lender in {each.lender for each in self.live.state.lends.of_borrower(start.job.id)}:
            running = self.live.running.get(lender)  # None: it starts in the same moment
            if running is None or not running.intent:  # else it leaves all of its cores
                self._order(lender)
        self.live.dirty = True

    def _too_late(self, job_id: int, ends: Collection[int] = ()) -> str:
        """Why borrower and lenders, without those that are ended, would not end before the allocation does, by their
        walltimes as they are stretched; "" where they would, or need not (End.Fit)."""
        live = self.live
        if not live.settings.end.fit:
            return ""
        for other in (job_id, *(each.lender for each in live.state.lends.of_borrower(job_id))):
            if other not in ends and live.cluster.bookings[other].limit > live.end.closing:
                return f"job {other} would run into the allocation's end, with fewer cores than it asked for"
        return ""

    def _lost(self, node: int) -> None:
        """A node answers no more."""
        host = self.live.cluster.nodes[node].name
        why = f"{host} does not answer"
        for job_id, start in list(self.coming.items()):
            if start.booking.placement.node_set >> node & 1:
                self._undo(job_id, why)
        for lender, order in list(self._orders.items()):
            if host in order.hosts:
                self._failed(lender, why)

    def _undo(self, job_id: int, why: str) -> None:
        """A job that was about to start on lent cores waits again, and they are taken back."""
        live = self.live
        start = self.coming.pop(job_id)
        lends = live.state.lends.of_borrower(job_id)
        self.ends.drop(live.state.back(job_id, recorded=False))
        for each in lends:
            live.state.lending.regain(each.number, live.now, why)
            self._order(each.lender)
        if why:
            live.tell("warning", f"#{job_id} {start.job.app} waits: {why}")
        live.changes()

    # Orders to the nodes.

    def _order(self, lender: int) -> None:
        """The ranks of a lender are to be where its lends leave them."""
        lends = self.live.state.lends
        running = self.live.running.get(lender)
        if running is not None and running.former is None:  # else it is ended: its nodes are others now
            self._orders[lender] = CoreOrder(lends.epochs.get(lender, 0))
            self.live.watch.forget_question(lender)
        self.live.renew(lender)

    def tidy(self, now: float) -> None:
        """Act again: what a borrower has left may be clear now, and nothing else happens for a while."""
        self.act(now)

    def act(self, now: float) -> None:
        """Send orders whose intents are on disk, take back what borrowers have left, and give up on nodes
        that do not answer."""
        live = self.live
        if not live.state.lends.all and not self._orders and not self.coming and not live.cluster.loans.guests:
            return
        self._take_back(now)
        self._pass_on(now)
        for each in live.state.lends.all.values():
            running = live.running.get(each.lender)
            if (each.phase == LENDING and running and not running.intent and running.former is None
                    and each.lender not in self._orders):
                self._order(each.lender)  # it has started in the same moment
                self._orders[each.lender].early = True
        self._orders = {lender: order for lender, order in self._orders.items() if lender in live.running}
        unsent = [lender for lender, order in self._orders.items() if not order.sent and now >= order.after]
        if unsent and live.synced():
            for lender in unsent:
                self._send(lender, now)
        for lender, order in list(self._orders.items()):
            if now >= order.until:
                self._failed(lender, f"no answer from {fold_nodes(sorted(order.hosts))}, which job {lender} "
                                     "runs on" if order.hosts else "")
        self._start_clear()

    def _take_back(self, now: float) -> None:
        """What borrowers have left goes back to its lenders."""
        live = self.live
        for each in list(live.state.lends.all.values()):
            if each.borrower in live.running and each.loan.until <= now:
                self._overdue(each, now)
            if each.phase == LENT and each.borrower != NOBODY and self._left(each.borrower, each.loan.since):
                live.state.lending.regain(each.number, now, f"job {each.borrower} has left")
                self._order(each.lender)

    def _overdue(self, lend: Lend, now: float) -> None:
        """A borrower takes longer than was expected: expect as long again, so that the lender's ends are
        not too early."""
        loans = self.live.cluster.loans
        for loan in loans.of_borrower(lend.borrower):
            if loan.lender == lend.lender and loan.until <= now:
                loans.outlives(self.live.cluster, lend.borrower, now, now + max(1.0, now - loan.since))
                self.live.renew(lend.lender)
                self.live.changes()
                return

    def _pass_on(self, now: float) -> None:
        """Borrowers whose lender has ended have what it left them, when nothing of it is there any more: first
        the one that holds it for the others, then all of them for themselves."""
        live, loans = self.live, self.live.cluster.loans
        if not loans.guests:
            return
        known = {(each.lender, each.borrower) for each in live.state.lends.all.values()}
        for loan in list(loans.all):
            if loan[:2] not in known and self._left(loan.borrower, loan.since):
                loans.regain(live.cluster, loan, now)
                live.renew(loan.lender)
                live.changes()
        for job_id, wide in loans.growing(live.cluster, now):
            running = live.running.get(job_id)
            if (running is None or running.intent or running.former or running.away or not all(
                    self._left(lender, running.booking.start) for lender, _ in running.booking.placement.lent)):
                continue
            more = wide.cores - running.booking.placement.cores
            live.state.lending.grow(job_id, wide, now)
            self._order(job_id)
            live.tell("note", f"#{job_id} has {more} more core{'s' * (more > 1)}: its lender has ended")
            live.changes()

    def _left(self, job_id: int, since: float) -> bool:
        """Whether nothing is on its cores any more of a job that started by then; it may have started again."""
        live = self.live
        again = [start.booking for start in (*self.coming.values(), *self.launches.prepared) if start.job.id == job_id]
        if job_id in live.running:
            again.append(live.running[job_id].booking)
        return (all(booking.start > since for booking in again)
                and not self.live.watch.sweeping(job_id) and live.records.sweep_at == math.inf
                and all(outcome.job.id != job_id for outcome in live.records.pending))

    def _send(self, lender: int, now: float) -> None:
        live, order = self.live, self._orders[lender]
        booking = live.running[lender].booking
        slots = list(core_share.slots(booking.placement, live.state.lends.plan(lender), live.cluster.nodes,
                                      live.cluster.layout))
        order.until = now + PATIENCE if order.until == math.inf else order.until
        order.sent = True
        stop = stops(live.cluster, booking, live.state.lends.shares.get(lender, ()))
        if stop is not None:
            order.hosts = pause(live.watch, live.launcher.run_id, booking, order.epoch, stop, live.cluster)
            if not order.hosts:
                self._clear(lender)
            return
        found = confine(self.live.watch, lender, order.epoch, slots, booking.placement.slots(live.cluster.nodes))
        order.hosts = set(found)
        if order.early and now < booking.start + YOUNG:
            order.ranks = found
        if not order.hosts:  # emulated cores: nobody is bound to any
            self._clear(lender)

    def _answered(self, event: Masks) -> None:
        """A node has moved the ranks of a lender, or says why it cannot."""
        order = self._orders.get(event.job_id)
        if order is None or not order.sent or event.epoch != order.epoch or event.host not in order.hosts:
            return
        if not event.clear:
            self._failed(event.job_id, f"job {event.job_id} keeps cores on {event.host} that it was to lend: "
                                       f"{event.error}")
            return
        now, running = self.live.now, self.live.running.get(event.job_id)
        if (order.ranks and running is not None and now < running.booking.start + YOUNG
                and not order.ranks.get(event.host, set()) <= set(event.threads)):
            order.sent, order.after = False, now + PAUSE  # some of its ranks are yet to come
            return
        order.hosts.discard(event.host)
        if not order.hosts:
            self._clear(event.job_id)

    def _clear(self, lender: int) -> None:
        """All nodes of a lender have its ranks where they are to be."""
        live = self.live
        del self._orders[lender]
        for each in live.state.lends.of_lender(lender):
            if each.phase == LENDING:
                live.state.lending.lent(each.number, live.now)
                self._tell(each, "lends", "to")
            elif each.phase == REGAINING:
                live.state.lending.regained(each.number, live.now)
                self._tell(each, "reclaimed", "from")
        self.live.renew(lender)
        running = live.running.get(lender)
        if running is not None and running.binding != "unchecked":
            running.bindings_due = live.now
        live.changes()
        self._start_clear()

    def _tell(self, lend: Lend, what: str, way: str) -> None:
        live = self.live
        layout, loan = live.cluster.layout, lend.loan
        if live.cluster.loans.stopped(live.cluster, live.cluster.bookings[lend.lender], loan.cores):
            live.tell("note", f"#{lend.lender} " + (f"is paused for #{lend.borrower}" if lend.phase == LENDING
                                                    else f"continues: #{lend.borrower} has left its cores"))
            return
        nodes = dict.fromkeys(live.cluster.nodes[node].name for node, *_ in layout.spans(loan.cores))
        whom = "" if loan.borrower == NOBODY else f" {way} #{loan.borrower}"
        number = loan.cores.bit_count()
        live.tell("note", f"#{loan.lender} {what} {number} core{'s' * (number > 1)} on "
                          f"{fold_nodes(list(nodes))}{whom}")

    def _start_clear(self) -> None:
        """Launch jobs whose cores are clear; nodes that went down have ended their lenders."""
        live = self.live
        for job_id in list(self.coming):
            if all(each.phase == LENT for each in live.state.lends.of_borrower(job_id)):
                start = self.coming.pop(job_id)._replace(booking=live.cluster.bookings[job_id])
                live.state.started(start, start.booking.start)
                self.launches.add(start)
                live.changes()

    def _failed(self, lender: int, why: str) -> None:
        """An order was not carried out: what was to be lent is not; what was to be had again is ordered
        once more."""
        live = self.live
        lends = live.state.lends.of_lender(lender)
        order = self._orders.pop(lender)
        live.cluster.loans.unwilling.add(lender)
        for each in lends:
            if each.phase != LENDING:
                continue
            if each.borrower == NOBODY:
                live.state.lending.regain(each.number, live.now, why)
                live.tell("warning", f"#{lender} lends nothing: {why}")
                self._order(lender)
            elif each.borrower in self.coming:
                self._undo(each.borrower, why)
        if lender not in self._orders and (any(each.phase == REGAINING for each in lends)
                                           or lender in live.state.lends.grown):
            self._orders[lender] = CoreOrder(order.epoch, until=live.now + AGAIN, sent=True)
            if order.hosts or not order.sent:
                live.tell("warning", f"#{lender} does not have all its cores again yet: {why}")
            else:  # the pause is over
                self._orders[lender] = CoreOrder(order.epoch)

    # After a restart.

    def resume(self) -> None:
        """Go on with the lends of an earlier manager: what was in the making is undone, what is in force
        is ordered again."""
        live = self.live
        for each in list(live.state.lends.all.values()):
            if each.lender not in live.running:
                continue
            if each.phase == LENDING and each.borrower != NOBODY:
                live.state.lending.regain(each.number, live.now, "the manager was restarted")
            self._order(each.lender)
        for job_id in live.state.lends.grown:
            self._order(job_id)
        live.renew()
