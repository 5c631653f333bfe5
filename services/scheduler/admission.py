"""Who gets which slot when: the scheduler's rules, without any waiting or network."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from services.platform.fleet import ChangeKind, FleetChange
from services.scheduler.queue import QueueFull, WaitingQueue
from services.scheduler.retry_advice import RetryAdvice
from services.scheduler.slots import Slot, Slots


class Rejected(Exception):
    """The queue is full."""

    def __init__(self, retry_after_ms: int, waiting: int) -> None:
        super().__init__(f"{waiting} requests are waiting already")
        self.retry_after_ms = retry_after_ms
        self.waiting = waiting


@dataclass(eq=False, slots=True)
class Ticket:
    """One request from joining to leaving. `on_granted` is called once, when `slot` and `candidate` are set."""

    workers: tuple[str, ...]  # decode worker ids, best first
    count: int  # slots wanted
    priority: int
    on_granted: Callable[[], None]
    slot: Slot | None = None
    candidate: int = 0  # index into workers
    left: bool = False


class Admission:
    """A joining request gets the first of its candidates that has room. Otherwise it waits, bound to none of them
    (late binding): whichever frees a slot first, the foremost waiting request that listed that worker gets it.

    A request that wants more slots than are free holds back those behind it that want the same workers;
    otherwise small requests could pass it for ever.
    """

    def __init__(self, queue_limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.slots = Slots()
        self.queue: WaitingQueue[Ticket] = WaitingQueue(queue_limit)
        self._advice = RetryAdvice()
        self._clock = clock

    def fleet_changed(self, change: FleetChange) -> None:
        if change.worker.role != "decode":
            return
        if change.kind is ChangeKind.REMOVED:
            self.slots.remove(change.worker.worker_id)
        else:
            self.slots.add(change.worker)
            self._dispatch()

    def join(self, ticket: Ticket) -> None:
        """Grants a slot at once or puts the ticket in the queue. Rejected: it would have to wait and can't."""
        open_workers = self.slots.free()
        for ahead in self.queue:
            if ahead.priority < ticket.priority:
                break
            open_workers.difference_update(ahead.workers)
        self._try(ticket, open_workers)
        if ticket.slot is not None:
            return
        try:
            self.queue.join(ticket, ticket.priority)
        except QueueFull:
            waiting = len(self.queue)
            raise Rejected(self._advice.retry_after_ms(self._clock(), waiting), waiting) from None

    def leave(self, ticket: Ticket) -> None:
        """Ends a ticket, waiting or granted; what it held goes to the next at once. Safe to call twice."""
        if ticket.left:
            return
        ticket.left = True
        self.queue.leave(ticket)
        if ticket.slot is not None:
            self.slots.give_back(ticket.slot)
        self._dispatch()  # also when it only waited: it may have held others back

    def _dispatch(self) -> None:
        """Grants whatever can be granted now, in order."""
        open_workers = self.slots.free()
        if not open_workers:
            return
        for ticket in self.queue:
            if not open_workers:
                return
            self._try(ticket, open_workers)
            if ticket.slot is None:
                open_workers.difference_update(ticket.workers)
            else:
                self.queue.leave(ticket)
                open_workers &= self.slots.free()

    def _try(self, ticket: Ticket, open_workers: set[str]) -> None:
        """Grants the ticket its first candidate among `open_workers` that has room, if any."""
        for candidate, worker_id in enumerate(ticket.workers):
            if worker_id in open_workers and (slot := self.slots.take(worker_id, ticket.count)) is not None:
                ticket.slot, ticket.candidate = slot, candidate
                self._advice.granted(self._clock())
                ticket.on_granted()
                return
