import random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.prefix_index import PrefixIndex


def pages(index: PrefixIndex, prompt: list[int]) -> dict[str, int]:
    match = index.match()
    match.feed(prompt)
    return match.pages()


def test_the_longest_run_from_the_start_counts_and_nothing_after_a_hole() -> None:
    index = PrefixIndex(100)
    index.store("a", [1, 2, 3])
    index.store("b", [1, 3, 4])
    index.store("c", [2, 3, 4])
    assert pages(index, [1, 2, 3, 4]) == {"a": 3, "b": 1}
    assert pages(index, [9]) == {}
    assert pages(index, []) == {}


def test_a_lookup_says_when_the_rest_need_not_be_hashed() -> None:
    index = PrefixIndex(100)
    index.store("a", [1, 2, 3, 4])
    index.store("b", [1])
    match = index.match()
    assert match.feed([1, 2])
    assert match.feed([3])
    assert not match.feed([7, 8])
    assert match.pages() == {"a": 3, "b": 1}


def test_a_dropped_worker_has_no_credit_left_and_its_place_can_be_taken() -> None:
    index = PrefixIndex(100)
    index.store("a", [1, 2])
    index.store("b", [1])
    index.drop("a")
    assert pages(index, [1, 2]) == {"b": 1}
    index.store("c", [2])
    assert pages(index, [1, 2]) == {"b": 1}
    assert len(index) == 2
    index.drop("nobody")
    index.remove("nobody", [1])
    assert pages(index, [1]) == {"b": 1}


def test_b056_200k_unique_prompts_stay_within_the_bound_and_the_newest_are_known() -> None:
    index = PrefixIndex(max_blocks=10_000)
    for prompt in range(200_000):
        index.store(f"w{prompt % 3}", [prompt * 2, prompt * 2 + 1])
    assert len(index) == 10_000
    assert sum(index.sizes().values()) == 10_000
    assert index.evicted == 390_000
    assert pages(index, [399_998, 399_999]) == {"w1": 2}
    assert pages(index, [0]) == {}


def test_pages_that_are_asked_for_outlive_pages_that_are_not() -> None:
    index = PrefixIndex(max_blocks=10)
    index.store("a", [1, 2])
    for other in range(100, 120):
        index.store("a", [other])
        assert pages(index, [1, 2]) == {"a": 2}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "remove", "drop"]),
        st.sampled_from(["a", "b", "c"]),
        st.lists(st.integers(0, 12), max_size=6),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.lists(st.integers(0, 12), max_size=8))
def test_it_answers_as_one_plain_set_a_worker_would(steps: list[tuple[str, str, list[int]]], prompt: list[int]) -> None:
    index, plain = PrefixIndex(10_000), dict[str, set[int]]()
    for action, worker, blocks in steps:
        if action == "store":
            index.store(worker, blocks)
            plain.setdefault(worker, set()).update(blocks)
        elif action == "remove":
            index.remove(worker, blocks)
            plain.setdefault(worker, set()).difference_update(blocks)
        else:
            index.drop(worker)
            plain.pop(worker, None)
    expected = {}
    for worker, held in plain.items():
        run = next((i for i, block in enumerate(prompt) if block not in held), len(prompt))
        if run:
            expected[worker] = run
    assert pages(index, prompt) == expected
    assert len(index) == len(set().union(*plain.values()))


@settings(max_examples=50, deadline=None)
@given(STEPS, st.integers(1, 5))
def test_the_bound_holds_whatever_happens(steps: list[tuple[str, str, list[int]]], bound: int) -> None:
    index = PrefixIndex(bound)
    for action, worker, blocks in steps:
        {"store": index.store, "remove": index.remove, "drop": lambda name, _: index.drop(name)}[action](worker, blocks)
        assert len(index) <= bound
        assert all(size <= bound for size in index.sizes().values())
    for worker in "abc":
        index.drop(worker)
    assert len(index) == 0


def test_many_lives_of_many_workers_do_not_make_lookups_dearer() -> None:
    index = PrefixIndex(1000)
    for life in range(2000):
        index.store(f"w{life}", [life % 7])
        if life >= 5:
            index.drop(f"w{life - 5}")
    assert max(index._bits.values()) < 1 << 8
    assert random.choice(list(index._bits)) in index.sizes()
