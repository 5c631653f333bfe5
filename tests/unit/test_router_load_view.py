from services.platform.fleet import WorkerRecord
from services.router.load_view import Load, LoadView
from tokenpath.v1.worker_pb2 import LoadState

WORKER = WorkerRecord("w", "g", "decode", "127.0.0.1:1", block_size=16, kv_blocks=100, max_num_seqs=8)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_load_is_the_report_plus_what_was_sent_since() -> None:
    loads = LoadView(5.0)
    assert loads.of("w") == Load()
    loads.report(WORKER, LoadState(running=2, waiting=1, waiting_tokens=30, kv_blocks_used=4))
    assert loads.of("w") == Load(3, 4 * 16 + 30)
    loads.book("w", 100)
    loads.book("w", 50)
    assert loads.of("w") == Load(5, 244)


def test_a_report_of_an_arrival_confirms_the_oldest_booking() -> None:
    loads = LoadView(5.0)
    loads.book("w", 100)
    loads.book("w", 50)
    loads.report(WORKER, LoadState(waiting=1, waiting_tokens=100, arrivals=1))
    assert loads.of("w") == Load(2, 150)
    loads.report(WORKER, LoadState(waiting=1, waiting_tokens=100, arrivals=1))  # nothing new arrived
    assert loads.of("w") == Load(2, 150)
    loads.report(WORKER, LoadState(running=5, arrivals=5))
    assert loads.of("w") == Load(5, 0)


def test_a_request_that_came_and_went_between_two_reports_confirms_its_booking() -> None:
    loads = LoadView(5.0)
    loads.report(WORKER, LoadState(arrivals=40))
    loads.book("w", 100)
    loads.report(WORKER, LoadState(arrivals=41))
    assert loads.of("w") == Load()
    loads.report(WORKER, LoadState(arrivals=0))  # another life counts anew
    loads.book("w", 50)
    assert loads.of("w") == Load(1, 50)


def test_a_booking_that_nothing_confirms_expires() -> None:
    clock = Clock()
    loads = LoadView(5.0, clock)
    loads.book("w", 100)
    clock.now = 4.9
    loads.book("w", 7)
    assert loads.of("w") == Load(2, 107)
    clock.now = 5.0
    assert loads.of("w") == Load(1, 7)
    clock.now = 10.0
    assert loads.of("w") == Load()


def test_a_worker_that_does_not_answer_is_unreachable_until_it_reports() -> None:
    loads = LoadView(5.0)
    assert loads.reachable("w")
    loads.report(WORKER, LoadState(running=3))
    loads.lost(WORKER)
    assert not loads.reachable("w")
    assert loads.of("w") == Load()
    loads.report(WORKER, LoadState())
    assert loads.reachable("w")
    loads.lost(WORKER)
    loads.forget(WORKER)
    assert loads.reachable("w")
