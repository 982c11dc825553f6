"""Part of a manager that moves cores between running jobs, from a decision until ranks have left them, and back.

To lend, the journal gets the intent; then the agents on the lender's nodes narrow the masks of its ranks and confirm
that none of its threads is left on the lent cores; then the borrower starts. Before cores return, the borrower must
have ended without a process left; then the agents widen the masks. Every order has a number (epoch) that increases
for each lender, so repeating it is harmless. If a node does not answer, the lend is undone and the borrower waits."""

from __future__ import annotations

import math
from typing import Any
from collections.abc import Collection, Mapping

from vrm.ext.lending.job_variables import FollowingCores
from vrm.ext.lending.nodes import lending
from vrm.ext.lending.orders import MASKS, CoreOrder, MaskReport, confine, pause, stops
from vrm.live.manager.liverun import LiveRun
from vrm.live.manager.jobs.ends import Ends
from vrm.live.manager.jobs.launches import Launches
from vrm.live.manager.part import (CommandHandler, JobHeldForCommand, JobReleased, NodeClosed, Part,
                                  ProgramPrepared, RunStopping)
from vrm.live.manager.jobs.live_job import LiveJob
from vrm.model import Job, JobState, Placement
from vrm.model.sharing import core_share
from vrm.model.sharing.core_share import NOBODY, Loan
from vrm.model.forms.hosts import fold as fold_nodes
from vrm.run.entry import Entry, JobStateError
from vrm.run.command_files import Command
from vrm.run.journal.history import RunHistory
from vrm.run.loans import LENDING, LENT, REGAINING, NumberedLoan
from vrm.scheduling import Start
from vrm.ext.lending.offers import CannotLend, borrowed, offer, reserved

YOUNG = 15.0
"""Seconds after the start of a lender within which some of its ranks may not exist yet. If it lends from its start
on, the order is repeated until all ranks exist."""

PAUSE = 0.25
"""Seconds between repeated orders."""

PATIENCE = 20.0
"""Seconds within which the nodes of a lender must answer an order."""

AGAIN = 5.0
"""Seconds after which a failed order to give a lender its cores back is repeated."""


class LendingPart(Part):
    """Moves cores between running jobs. `coming` are the starts on lent cores that the lenders have not left yet."""

    observes = (MaskReport, NodeClosed, JobHeldForCommand, JobReleased, ProgramPrepared, RunStopping)

    def __init__(self, live: LiveRun) -> None:
        self.live = live
        self.ends = live.part(Ends)
        self.launches = live.part(Launches)
        self.coming: dict[int, Start] = {}
        self._orders: dict[int, CoreOrder] = {}
        self._following = FollowingCores(live)

    def recall(self, past: RunHistory) -> None:
        """Prepare the agents for mask orders if nodes may have files of malleable jobs of an earlier manager."""
        if past.state.lends.epochs or any(job.malleable for job, _ in past.running):
            self.live.watch.know(MASKS)

    def deadline(self, now: float) -> float:
        """Return the time at which the next order is sent or times out."""
        return min((order.until if order.sent else min(order.until, order.after)
                    for order in self._orders.values()), default=math.inf)

    def busy(self) -> bool:
        """Return whether jobs are about to start on lent cores."""
        return bool(self.coming)

    def observe(self, event: object) -> None:
        """Handle what changes orders: answers, silent nodes, commands about borrowers, ends, and starts of programs."""
        if isinstance(event, MaskReport):
            self._answered(event)
        elif isinstance(event, NodeClosed):
            self._lost(event.node)
        elif isinstance(event, JobHeldForCommand):
            self._settle(event.job_id)
        elif isinstance(event, JobReleased) and event.job.malleable:
            lending.remove(lending.folder(self.live.launcher.run_id, event.job.id))
        elif isinstance(event, ProgramPrepared) and event.booking.job.malleable:
            self.live.watch.know(MASKS)
            self._following.give(event)
        elif isinstance(event, RunStopping):
            for job_id in list(self.coming):
                self._settle(job_id)

    def _settle(self, job_id: int) -> None:
        if job_id in self.coming:
            self._undo(job_id, "")

    def commands(self) -> Mapping[str, CommandHandler]:
        """Return the handler of the command `lend`, which lends cores or takes them back."""
        return {"lend": self._handle_command}

    def _handle_command(self, command: Command, name: str) -> Command:
        lender, to = int(command["id"]), command.get("to")
        for job_id in (lender, *((int(to),) if to is not None else ())):
            self.ends.settle(job_id)
        try:
            text = (self.back(lender, command=name) if command.get("back") else
                    self.ask(lender, int(command["cores"]), None if to is None else int(to), command=name))
        except JobStateError as error:
            return {"ok": False, "text": str(error)}
        return {"ok": True, "text": text}

    def moving(self, job_id: int) -> bool:
        """Return whether the ranks of a job are being moved; they may be on old or new cores."""
        return job_id in self._orders

    def ask(self, lender: int, cores: int, to: int | None, **origin: Any) -> str:
        """Let a running job lend `cores` cores on each of its nodes (0: half of its cores) to the waiting job `to`,
        or to no job (None). Return a sentence that says what is done. Raises JobStateError if it is not possible."""
        live, running = self.live, self._lender(lender)
        cluster, now = live.cluster, live.now
        try:
            found = offer(cluster, lender, cores)
        except CannotLend as error:
            raise JobStateError(str(error)) from error
        where = fold_nodes([cluster.nodes[node].name for node in running.booking.placement.nodes])
        number = found.cores.bit_count() // len(running.booking.placement.nodes)
        what = f"job {lender} lends {number} core{'s' * (number > 1)} on {where}"
        if to is None:
            self._check_reservations(reserved(cluster, [(lender, found.cores)], now))
            live.state.lending.lend(Loan(lender, NOBODY, found.cores, now, math.inf), **origin)
            self._order(lender)
            return f"{what} to no job: its ranks leave them free until `vrm lend {lender} --back`"
        job = self.waiting(to).job
        if job.request.parts:
            raise JobStateError(f"job {to} has several programs, and starts on cores of its own")
        placement = borrowed(job, cluster, [(lender, found.cores)], shrinks=job.malleable)
        if placement is None:
            raise JobStateError(
                f"job {to} needs {job.procs} rank(s) of {job.cores} core(s) and what else it asks for, and "
                f"does not fit on {number} core(s) of {where}: lend more with --cores, or submit it with "
                "--malleable, so that its ranks may have fewer cores")
        self._check_reservations(reserved(cluster, [(lender, found.cores)], now, job, placement))
        self.borrow(job, placement, **origin)
        fewer = (f" with {placement.width} core{'s' * (placement.width > 1)} for each rank, not "
                 f"{job.cores}" if placement.width < job.cores else "")
        return (f"{what} to job {to}, which starts{fewer} when job {lender} has left "
                f"{'them' if number > 1 else 'it'}")

    def borrow(self, job: Job, placement: Placement, ends: Collection[int] = (), **origin: Any) -> None:
        """Start a waiting job on cores that running jobs lend, as soon as they are clear. The lenders in `ends` are
        ended and requeued instead. Raises JobStateError if the job or a lender would run beyond the end of the
        allocation."""
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
            raise JobStateError(f"nothing is lent to job {job.id}: {late}")

    @staticmethod
    def _check_reservations(why: str) -> None:
        if why:
            raise JobStateError(f"{why}; see `vrm reserve --list`")

    def _lender(self, job_id: int) -> LiveJob:
        entry = self.live.state.entry(job_id)
        running = self.live.running.get(job_id)
        if running is None or running.intent:
            raise JobStateError(f"job {job_id} does not run: it is {entry.state.value}")
        if running.former or running.away:
            raise JobStateError(f"job {job_id} runs on other nodes than these, or under another manager")
        if entry.job.payload.script:
            raise JobStateError(f"job {job_id} is a script, and scripts lend no cores")
        if not entry.job.malleable:
            raise JobStateError(f"job {job_id} is not malleable: submit it with --malleable (queue line: "
                                "malleable=1) if its program may run on fewer cores; see `vrm malleable`")
        return running

    def waiting(self, job_id: int) -> Entry:
        entry = self.live.state.entry(job_id)
        if job_id not in self.live.state.queue or job_id in self.live.state.queue.outside:
            why = ("it is held, or waits for other jobs" if entry.state is JobState.QUEUED
                   else f"it is {entry.state.value}")
            raise JobStateError(f"job {job_id} cannot start now: {why}")
        if self.live.phase != "running":
            raise JobStateError("the manager is stopping and starts nothing more")
        return entry

    def back(self, lender: int, **origin: Any) -> str:
        """Take back cores lent to no job, or to jobs that have not started. Raises JobStateError without any."""
        live = self.live
        live.state.entry(lender)
        lends = [each for each in live.state.lends.of_lender(lender) if each.phase != REGAINING]
        if not lends:
            raise JobStateError(f"job {lender} lends no cores")
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
            raise JobStateError(f"job {runs} runs on the cores of job {lender} until it ends; `vrm requeue "
                                f"{busy[0]}` lets it wait again, `vrm cancel {busy[0]}` ends it")
        return f"job {lender} takes its cores back" + (f", but those on which job {runs} runs" if busy
                                                       else "")

    # Decisions of the dispatcher.

    def starts(self, start: Start, now: float) -> bool:
        """Take over a start on lent cores; return False for other starts."""
        if start.booking.placement.lease is None:
            return False
        self.add(start)
        return True

    def add(self, start: Start) -> None:
        """Prepare a start on lent cores that the dispatcher has decided. The record of the intent is already queued
        for the journal."""
        late = self._too_late(start.job.id)
        if late:  # otherwise the dispatcher would decide it again at once
            self.live.cluster.loans.refusing_lenders.update(
                each.lender for each in self.live.state.lends.of_borrower(start.job.id))
        self._come(start, late)

    def _come(self, start: Start, late: str) -> None:
        """Start a job on lent cores as soon as they are clear. If `late` gives a reason why that is too late, undo
        it."""
        self.coming[start.job.id] = start
        if late:
            self._undo(start.job.id, late)
            return
        for lender in {each.lender for each in self.live.state.lends.of_borrower(start.job.id)}:
            running = self.live.running.get(lender)  # None: it starts at the same moment
            if running is None or not running.intent:  # otherwise it leaves all of its cores
                self._order(lender)
        self.live.dirty = True

    def _too_late(self, job_id: int, ends: Collection[int] = ()) -> str:
        """Return why the borrower or a lender (except those in `ends`) would not end before the allocation does,
        according to their walltimes stretched for fewer cores; "" if they would, or if that is not required
        (End.Fit)."""
        live = self.live
        if not live.settings.end.fit:
            return ""
        for other in (job_id, *(each.lender for each in live.state.lends.of_borrower(job_id))):
            if other not in ends and live.cluster.bookings[other].limit > live.end.closing:
                return f"job {other} would run into the allocation's end, with fewer cores than it asked for"
        return ""

    def _lost(self, node: int) -> None:
        """Undo starts on a node that does not answer, and fail its orders."""
        host = self.live.cluster.nodes[node].name
        why = f"{host} does not answer"
        for job_id, start in list(self.coming.items()):
            if start.booking.placement.node_set >> node & 1:
                self._undo(job_id, why)
        for lender, order in list(self._orders.items()):
            if host in order.hosts:
                self._failed(lender, why)

    def _undo(self, job_id: int, why: str) -> None:
        """Let a job that was about to start on lent cores wait again, and take the cores back."""
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
        """Create a new order that sets the masks of a lender's ranks according to its current loans."""
        lends = self.live.state.lends
        running = self.live.running.get(lender)
        if running is not None and running.former is None:  # else it is ended: its nodes have changed
            self._orders[lender] = CoreOrder(lends.epochs.get(lender, 0))
            self.live.watch.forget_question(lender)
        self.live.renew(lender)

    def tidy(self, now: float) -> None:
        """Act again at the end of the turn: a borrower may have left its cores during the turn, and no event may
        follow soon."""
        self.act(now)

    def act(self, now: float) -> None:
        """Send orders whose intents are on disk, take back cores that borrowers have left, and fail orders that were
        not answered in time."""
        live = self.live
        if not live.state.lends.all and not self._orders and not self.coming and not live.cluster.loans.borrowing_jobs:
            return
        self._take_back(now)
        self._pass_on(now)
        for each in live.state.lends.all.values():
            running = live.running.get(each.lender)
            if (each.phase == LENDING and running and not running.intent and running.former is None
                    and each.lender not in self._orders):
                self._order(each.lender)  # it has started at the same moment
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
        self._launch_ready()

    def _take_back(self, now: float) -> None:
        """Start to return the cores that borrowers have left to their lenders."""
        live = self.live
        for each in list(live.state.lends.all.values()):
            if each.borrower in live.running and each.loan.until <= now:
                self._overdue(each, now)
            if each.phase == LENT and each.borrower != NOBODY and self._left(each.borrower, each.loan.since):
                live.state.lending.regain(each.number, now, f"job {each.borrower} has left")
                self._order(each.lender)

    def _overdue(self, lend: NumberedLoan, now: float) -> None:
        """A borrower runs longer than expected: expect that it runs as long again, so that the expected end of the
        lender is not too early."""
        loans = self.live.cluster.loans
        for loan in loans.of_borrower(lend.borrower):
            if loan.lender == lend.lender and loan.until <= now:
                loans.extend_loans(self.live.cluster, lend.borrower, now, now + max(1.0, now - loan.since))
                self.live.renew(lend.lender)
                self.live.changes()
                return

    def _pass_on(self, now: float) -> None:
        """Give cores of ended lenders to their borrowers once no process of the lender is left on them: first to the
        borrower that holds them for the others; when all lenders of a borrower have left, let it use its cores
        itself."""
        live, loans = self.live, self.live.cluster.loans
        if not loans.borrowing_jobs:
            return
        known = {(each.lender, each.borrower) for each in live.state.lends.all.values()}
        for loan in list(loans.all):
            if loan[:2] not in known and self._left(loan.borrower, loan.since):
                loans.regain(live.cluster, loan, now)
                live.renew(loan.lender)
                live.changes()
        for job_id, wide in loans.growable_jobs(live.cluster, now):
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
        """Return whether no process of a job that started at `since` or before is left on its cores. The job may
        have started again since."""
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
        if not order.hosts:  # emulated cores: no process is bound
            self._clear(lender)

    def _answered(self, event: MaskReport) -> None:
        """Handle a node's answer: it has moved the ranks of a lender, or reports why it cannot."""
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
            order.sent, order.after = False, now + PAUSE  # some of its ranks do not exist yet
            return
        order.hosts.discard(event.host)
        if not order.hosts:
            self._clear(event.job_id)

    def _clear(self, lender: int) -> None:
        """All nodes have moved the ranks of a lender: update its loans."""
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
        self._launch_ready()

    def _tell(self, lend: NumberedLoan, what: str, way: str) -> None:
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

    def _launch_ready(self) -> None:
        """Launch the jobs whose cores are clear; nodes that went down have ended their lenders."""
        live = self.live
        for job_id in list(self.coming):
            if all(each.phase == LENT for each in live.state.lends.of_borrower(job_id)):
                start = self.coming.pop(job_id)._replace(booking=live.cluster.bookings[job_id])
                live.state.started(start, start.booking.start)
                self.launches.add(start)
                live.changes()

    def _failed(self, lender: int, why: str) -> None:
        """An order was not carried out: cancel loans that were being made, and order again to return cores."""
        live = self.live
        lends = live.state.lends.of_lender(lender)
        order = self._orders.pop(lender)
        live.cluster.loans.refusing_lenders.add(lender)
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
            else:  # the wait of AGAIN seconds is over
                self._orders[lender] = CoreOrder(order.epoch)

    # After a restart.

    def resume(self) -> None:
        """Continue the loans of an earlier manager: undo loans that were being made, and send orders again for loans
        in force."""
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
