import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.queue import QueueFull, WaitingQueue


class Item:
    def __init__(self, priority: int) -> None:
        self.priority = priority


def test_higher_priority_goes_first_and_equals_in_order_of_arrival() -> None:
    queue: WaitingQueue[str] = WaitingQueue(10)
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)):
        queue.join(name, priority)
    assert list(queue) == ["b", "d", "a", "c", "e"]
    assert [queue.position(name) for name in "abcde"] == [2, 0, 3, 1, 4]


def test_a_full_queue_refuses_and_a_leaver_makes_room() -> None:
    queue: WaitingQueue[str] = WaitingQueue(2)
    queue.join("a", 0)
    queue.join("b", 0)
    with pytest.raises(QueueFull):
        queue.join("c", 9)
    assert queue.leave("a")
    queue.join("c", 9)
    assert list(queue) == ["c", "b"]


def test_leaving_twice_and_unknown_items_are_harmless() -> None:
    queue: WaitingQueue[str] = WaitingQueue(2)
    queue.join("a", 0)
    assert queue.leave("a")
    assert not queue.leave("a")
    assert not queue.leave("x")
    assert queue.position("a") is None


def test_a_queue_of_no_length_refuses_everybody() -> None:
    with pytest.raises(QueueFull):
        WaitingQueue[str](0).join("a", 0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(-3, 3), st.tuples(st.integers(0, 30))), max_size=60), st.integers(0, 12))
def test_it_behaves_as_a_list_sorted_by_priority_then_arrival(steps: list[int | tuple[int]], limit: int) -> None:
    queue: WaitingQueue[Item] = WaitingQueue(limit)
    plain: list[Item] = []
    for step in steps:
        if isinstance(step, int):
            item = Item(step)
            if len(plain) == limit:
                with pytest.raises(QueueFull):
                    queue.join(item, step)
            else:
                queue.join(item, step)
                plain.append(item)
        elif plain:
            item = plain.pop(step[0] % len(plain))
            assert queue.leave(item)
        expected = sorted(plain, key=lambda waiting: -waiting.priority)  # stable: arrival breaks ties
        assert list(queue) == expected
        assert [queue.position(item) for item in expected] == list(range(len(expected)))
        assert len(queue) == len(expected)
