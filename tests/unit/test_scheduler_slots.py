from services.platform.fleet import WorkerRecord
from services.scheduler.slots import Slots


def worker(name: str = "d", generation: str = "g1", max_num_seqs: int = 4) -> WorkerRecord:
    return WorkerRecord(name, generation, "decode", "127.0.0.1:1", max_num_seqs=max_num_seqs)


def test_slots_are_taken_up_to_the_workers_capacity_and_given_back() -> None:
    slots = Slots()
    slots.add(worker())
    first, second = slots.take("d", 3), slots.take("d", 1)
    assert first is not None
    assert second is not None
    assert slots.take("d", 1) is None
    assert (slots.used, slots.total, slots.free()) == (4, 4, set())
    slots.give_back(first)
    assert (slots.used, slots.free()) == (1, {"d"})
    assert slots.take("d", 4) is None


def test_more_than_a_worker_can_run_is_capped_and_nothing_means_one() -> None:
    slots = Slots()
    slots.add(worker())
    everything = slots.take("d", 100)
    assert everything is not None
    assert everything.count == 4
    slots.give_back(everything)
    one = slots.take("d", 0)
    assert one is not None
    assert one.count == 1


def test_a_worker_that_is_not_there_has_no_slots() -> None:
    slots = Slots()
    assert slots.take("d", 1) is None
    assert not slots.known(["d"])


def test_a_new_life_starts_empty_and_the_old_lifes_slots_do_not_count_against_it() -> None:
    slots = Slots()
    slots.add(worker())
    old = slots.take("d", 4)
    assert old is not None
    slots.add(worker(generation="g2", max_num_seqs=2))
    new = slots.take("d", 2)
    assert new is not None
    assert slots.usage() == {"d": (2, 2)}
    assert slots.used == 6
    slots.give_back(old)  # its stream ended: the new life is as full as before
    assert slots.take("d", 1) is None
    slots.give_back(new)
    assert slots.used == 0


def test_the_same_life_seen_twice_keeps_its_slots() -> None:
    slots = Slots()
    slots.add(worker())
    assert slots.take("d", 4) is not None
    slots.add(worker())
    assert slots.free() == set()


def test_a_worker_that_left_takes_its_slots_along() -> None:
    slots = Slots()
    slots.add(worker())
    held = slots.take("d", 2)
    assert held is not None
    slots.remove("d")
    assert (slots.total, slots.used) == (0, 2)
    slots.give_back(held)
    assert slots.used == 0
    slots.remove("d")
