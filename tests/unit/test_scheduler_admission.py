import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.platform.fleet import ChangeKind, FleetChange, WorkerRecord
from services.scheduler.admission import Admission, Rejected, Ticket


def change(kind: ChangeKind, name: str, capacity: int = 2, generation: str = "g1", role: str = "decode") -> FleetChange:
    return FleetChange(kind, WorkerRecord(name, generation, role, "127.0.0.1:1", max_num_seqs=capacity))


def admission(limit: int = 10, **capacities: int) -> Admission:
    made = Admission(limit)
    for name, capacity in capacities.items():
        made.fleet_changed(change(ChangeKind.ADDED, name, capacity))
    return made


def ticket(*workers: str, priority: int = 0, count: int = 1) -> Ticket:
    return Ticket(workers, count, priority, on_granted=lambda: None)


def join(to: Admission, *workers: str, priority: int = 0, count: int = 1) -> Ticket:
    made = ticket(*workers, priority=priority, count=count)
    to.join(made)
    return made


def holder(one: Ticket) -> str:
    return one.slot.worker_id if one.slot else ""


def test_the_best_ranked_candidate_with_room_wins() -> None:
    rules = admission(a=1, b=1)
    first, second, third = (join(rules, "a", "b") for _ in range(3))
    assert [holder(one) for one in (first, second, third)] == ["a", "b", ""]
    assert (first.candidate, second.candidate) == (0, 1)


def test_a_freed_slot_goes_at_once_to_the_foremost_that_listed_its_worker() -> None:
    rules = admission(a=1, b=1)
    on_a, on_b = join(rules, "a"), join(rules, "b")
    only_a, either = join(rules, "a"), join(rules, "a", "b")
    rules.leave(on_b)
    assert holder(either) == "b"  # bound late: it ranked "a" first
    assert holder(only_a) == ""
    rules.leave(on_a)
    assert holder(only_a) == "a"


def test_priority_goes_first_and_equals_keep_their_order() -> None:
    rules = admission(a=1)
    running = join(rules, "a")
    low, high, low_too, high_too = (join(rules, "a", priority=priority) for priority in (0, 5, 0, 5))
    order = []
    while waiting := [one for one in (low, high, low_too, high_too) if one.slot is None]:
        rules.leave(running)
        running = next(one for one in waiting if one.slot is not None)
        order.append(running)
    assert order == [high, high_too, low, low_too]


def test_many_small_requests_do_not_pass_a_big_one_for_ever() -> None:
    rules = admission(a=3)
    running = [join(rules, "a") for _ in range(3)]
    big = join(rules, "a", count=3)
    small = join(rules, "a")
    rules.leave(running.pop())
    late = join(rules, "a")
    assert (holder(big), holder(small), holder(late)) == ("", "", "")
    for one in running:
        rules.leave(one)
    assert holder(big) == "a"
    assert rules.slots.used == 3


def test_who_waits_for_another_worker_holds_nobody_back() -> None:
    rules = admission(a=1, b=1)
    join(rules, "a")
    assert holder(join(rules, "a")) == ""
    assert holder(join(rules, "b")) == "b"


def test_a_big_request_that_gives_up_lets_those_behind_it_go_on() -> None:
    rules = admission(a=2)
    join(rules, "a")
    big, small = join(rules, "a", count=2), join(rules, "a")
    assert holder(small) == ""
    rules.leave(big)
    assert holder(small) == "a"


def test_b049_a_full_queue_refuses_at_once_but_not_those_that_need_not_wait() -> None:
    rules = admission(limit=2, a=1, b=1)
    join(rules, "a")
    waiting = [join(rules, "a"), join(rules, "a")]
    refused = ticket("a", priority=9)
    with pytest.raises(Rejected) as rejected:
        rules.join(refused)
    assert rejected.value.waiting == 2
    assert 100 <= rejected.value.retry_after_ms <= 30_000
    assert holder(join(rules, "b")) == "b"
    rules.leave(refused)
    rules.leave(waiting[0])  # a caller that goes frees its place
    join(rules, "a")
    assert len(rules.queue) == 2


def test_a_worker_that_joins_or_restarts_is_used_at_once() -> None:
    rules = admission()
    first, second = join(rules, "a"), join(rules, "a")
    rules.fleet_changed(change(ChangeKind.ADDED, "a", capacity=1))
    assert (holder(first), holder(second)) == ("a", "")
    rules.fleet_changed(change(ChangeKind.RESTARTED, "a", capacity=1, generation="g2"))
    assert holder(second) == "a"
    rules.leave(first)
    assert holder(join(rules, "a")) == ""
    rules.fleet_changed(change(ChangeKind.REMOVED, "a"))
    rules.leave(second)
    assert rules.slots.used == 0


def test_prefill_workers_have_no_slots_here() -> None:
    rules = admission()
    rules.fleet_changed(change(ChangeKind.ADDED, "p", role="prefill"))
    assert rules.slots.total == 0


def test_retry_advice_follows_the_rate_of_grants() -> None:
    now = 100.0
    rules = Admission(4, clock=lambda: now)
    rules.fleet_changed(change(ChangeKind.ADDED, "a", capacity=1))
    running = join(rules, "a")
    waiting = [join(rules, "a") for _ in range(4)]

    def advice() -> int:
        with pytest.raises(Rejected) as rejected:
            rules.join(ticket("a"))
        return rejected.value.retry_after_ms

    assert advice() == 1000  # one grant says nothing about a rate
    for _ in range(4):
        now += 2.0
        rules.leave(running)
        running = next(one for one in waiting if one.slot)
        waiting.remove(running)
        waiting.append(join(rules, "a"))
    assert advice() == pytest.approx(5 * 8000 / 5, abs=1)  # five places at five grants in 8 s
    now += 10_000
    assert advice() == 30_000


def test_1000_random_joins_and_leaves_leave_nothing_behind() -> None:
    dice = random.Random(7)
    rules = admission(limit=20, a=3, b=2, c=1)
    present: list[Ticket] = []
    granted = 0
    for _ in range(1000):
        if present and dice.random() < 0.45:
            rules.leave(present.pop(dice.randrange(len(present))))
        else:
            made = ticket(
                *dice.sample("abc", dice.randint(1, 3)), priority=dice.randint(0, 2), count=dice.randint(1, 3)
            )
            try:
                rules.join(made)
            except Rejected:
                rules.leave(made)
            else:
                present.append(made)
        granted += sum(one.slot is not None for one in present)
    assert granted > 1000
    for one in present:
        rules.leave(one)
        rules.leave(one)
    assert rules.slots.used == 0
    assert len(rules.queue) == 0
    assert rules.slots.usage() == {"a": (0, 3), "b": (0, 2), "c": (0, 1)}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "join", "leave", "leave", "restart", "remove", "add"]),
        st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True),
        st.integers(1, 3),
        st.integers(0, 2),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_no_slot_is_ever_oversold_and_nobody_waits_whose_turn_it_is(
    steps: list[tuple[str, list[str], int, int]],
) -> None:
    rules = admission(limit=5, a=2, b=1)
    present: list[Ticket] = []
    for life, (action, workers, count, priority) in enumerate(steps):
        if action == "join":
            made = ticket(*workers, priority=priority, count=count)
            try:
                rules.join(made)
            except Rejected:
                assert len(rules.queue) == 5
            else:
                present.append(made)
        elif action == "leave" and present:
            rules.leave(present.pop(priority % len(present)))
        elif action == "remove":
            rules.fleet_changed(change(ChangeKind.REMOVED, workers[0]))
        elif action in ("add", "restart"):
            rules.fleet_changed(change(ChangeKind.RESTARTED, workers[0], capacity=count, generation=f"g{life}"))
        usage = rules.slots.usage()
        assert all(0 <= used <= capacity for used, capacity in usage.values())
        assert rules.slots.used == sum(one.slot.count for one in present if one.slot)
        assert list(rules.queue) == sorted((o for o in present if o.slot is None), key=lambda o: -o.priority)
        held_back: set[str] = set()
        for waiting in rules.queue:
            for name in set(waiting.workers) - held_back:
                used, capacity = usage.get(name, (0, 0))
                assert not capacity or used + min(waiting.count, capacity) > capacity, f"{name} has room"
            held_back.update(waiting.workers)
    for one in present:
        rules.leave(one)
    assert rules.slots.used == 0
    assert len(rules.queue) == 0
