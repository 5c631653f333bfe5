"""From logits to tokens: definitions against transformers' processors, edges, and damaged rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from services.engine.runner import Sampled, SampleRequest
from services.engine.sampling.adjust import adjusted
from services.engine.sampling.choose import candidates, choose
from services.engine.sampling.sampler import sample_rows
from services.engine.sampling.uniform import uniforms
from services.engine.sampling_params import SamplingParams

VOCABULARY = 5000
Row = npt.NDArray[np.float32]


def row(seed: int = 0, size: int = VOCABULARY) -> Row:
    return (np.random.default_rng(seed).normal(size=size) * 3).astype(np.float32)


def request(
    *,
    position: int = 0,
    seed: tuple[int, int] = (1, 0),
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Sequence[int] = (),
    **params: Any,
) -> SampleRequest:
    return SampleRequest(SamplingParams(**params), seed, position, prompt, output, banned)


def sample(logits: Row, item: SampleRequest) -> Sampled:
    [result] = sample_rows(logits[None], [item])
    assert isinstance(result, Sampled), result
    return result


def possible(logits: Row, params: SamplingParams) -> set[int]:
    """Every token that some random numbers lead to."""
    ids, weights = candidates(logits, params)
    return set(ids[weights > 0].tolist())


# --- random numbers


def test_random_numbers_are_fixed_by_seed_choice_and_position() -> None:
    """These values are part of the contract between workers and must not change with a version of numpy."""
    assert uniforms((42, 0), 0, 2).tolist() == [0.30228468775749207, 0.8201979994773865]
    assert uniforms((42, 0), 1, 2).tolist() == [0.6352871060371399, 0.20650306344032288]
    assert uniforms((42, 1), 0, 2).tolist() == [0.8700463175773621, 0.4437468647956848]
    assert uniforms((-1, 0), 0, 1).tolist() == [0.5541741251945496]
    np.testing.assert_array_equal(uniforms((42, 0), 7, 5), uniforms((42, 0), 7, 100)[:5])


def test_random_numbers_are_even_and_unlike_each_other() -> None:
    seeds = [(seed, choice) for seed in range(4) for choice in range(5)]
    numbers = np.concatenate([uniforms(seed, position, 5) for seed in seeds for position in range(100)])
    assert len(set(numbers)) > 9_990  # float32 has equal ones now and then
    assert numbers.min() > 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert ((counts - 500) ** 2 / 500).sum() < 45.3  # chi-square, 19 degrees of freedom, p = 0.0006
    by_position = numbers.reshape(100, 100)
    assert abs(np.corrcoef(by_position[:-1].ravel(), by_position[1:].ravel())[0, 1]) < 0.04
    assert abs(np.corrcoef(by_position[:, :-1].ravel(), by_position[:, 1:].ravel())[0, 1]) < 0.04


# --- greedy, penalties, bias


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 9.9e-6])
def test_b011_a_tiny_temperature_takes_the_most_likely_token(temperature: float) -> None:
    logits = row()
    assert {sample(logits, request(temperature=temperature, position=p)).token_id for p in range(20)} == {
        int(logits.argmax())
    }


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 2.0, 100.0])
def test_b011_extreme_temperatures_give_a_token(temperature: float) -> None:
    assert 0 <= sample(row() * 100, request(temperature=temperature)).token_id < VOCABULARY


def test_repetition_penalty_is_transformers() -> None:
    logits, seen = row(), [3, 3, 17, 4999]
    processor: LogitsProcessor = RepetitionPenaltyLogitsProcessor(1.7)
    expected = processor(torch.tensor([seen]), torch.from_numpy(logits[None].copy()))[0].numpy()
    actual = adjusted(logits, request(repetition_penalty=1.7, prompt=[3, 17], output=[3, 4999]))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert {bool(value > 0) for value in logits[seen]} == {True, False}, "both signs must occur to tell anything"


def test_frequency_and_presence_penalty_are_openais_and_count_the_output_only() -> None:
    logits, output = row(), [5, 5, 5, 9]
    actual = adjusted(logits, request(frequency_penalty=0.5, presence_penalty=-0.25, prompt=[1, 5], output=output))
    expected = logits.copy()
    for token, count in Counter(output).items():  # mu[j] - c[j] * alpha_frequency - (c[j] > 0) * alpha_presence
        expected[token] += -count * 0.5 + 0.25
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_penalties_change_a_greedy_choice() -> None:
    logits = np.array([5.0, 4.9, 1.0], np.float32)
    assert sample(logits, request(temperature=0.0, output=[0])).token_id == 0
    assert sample(logits, request(temperature=0.0, output=[0], frequency_penalty=0.2)).token_id == 1
    assert sample(logits, request(temperature=0.0, output=[0], presence_penalty=0.2)).token_id == 1
    assert sample(logits, request(temperature=0.0, prompt=[0], repetition_penalty=1.1)).token_id == 1


def test_bias_comes_before_the_repetition_penalty() -> None:
    """vLLM's order: a token lifted above zero by its bias is divided by the penalty, not multiplied."""
    actual = adjusted(
        np.array([-1.0, 0.0], np.float32), request(logit_bias={0: 3.0}, repetition_penalty=2.0, prompt=[0])
    )
    assert actual[0] == 1.0


def test_bias_forces_and_forbids() -> None:
    logits = row()
    assert sample(logits, request(logit_bias={77: 100.0})).token_id == 77
    best = int(logits.argmax())
    assert sample(logits, request(temperature=0.0, logit_bias={best: -100.0})).token_id != best


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banned_tokens_never_come_even_with_a_bias(temperature: float) -> None:
    logits = row()
    best = int(logits.argmax())
    item = request(temperature=temperature, banned=[best], logit_bias={best: 100.0})
    assert sample(logits, item).token_id != best


def test_the_callers_logits_are_left_alone() -> None:
    logits = row()
    before = logits.copy()
    sample(logits, request(temperature=0.7, banned=[1], logit_bias={2: 3.0}, top_k=5, top_p=0.5, min_p=0.1, logprobs=2))
    np.testing.assert_array_equal(logits, before)


# --- top-k, top-p, min-p


@pytest.mark.parametrize(
    ("params", "warpers"),
    [
        ({"top_k": 7}, [TopKLogitsWarper(7)]),
        ({"top_p": 0.6}, [TopPLogitsWarper(0.6)]),
        ({"min_p": 0.02}, [MinPLogitsWarper(0.02)]),
        ({"top_k": 9, "top_p": 0.5}, [TopKLogitsWarper(9), TopPLogitsWarper(0.5)]),
        (
            {"top_k": 30, "min_p": 0.02, "top_p": 0.9},
            [MinPLogitsWarper(0.02), TopKLogitsWarper(30), TopPLogitsWarper(0.9)],
        ),
    ],
)
def test_filters_keep_the_tokens_that_transformers_keeps(
    params: dict[str, Any], warpers: list[LogitsProcessor]
) -> None:
    logits = row(3, size=200) / 3
    scores = torch.from_numpy(logits[None] / np.float32(0.8))
    for warper in warpers:
        scores = warper(None, scores)
    kept = {int(index) for index in torch.isfinite(scores[0]).nonzero()}
    assert len(kept) > 2
    assert possible(logits, SamplingParams(temperature=0.8, **params)) == kept


def test_top_p_stops_at_an_exact_share() -> None:
    """As in vLLM and transformers: of four equal tokens, two make a half."""
    assert len(possible(np.zeros(4, np.float32), SamplingParams(top_p=0.5))) == 2


@pytest.mark.parametrize("size", [50, 2000])
def test_top_p_of_a_flat_distribution_keeps_its_share(size: int) -> None:
    """2000 flat tokens need more of them than are sorted first."""
    logits = np.zeros(size, np.float32)
    assert len(possible(logits, SamplingParams(top_p=0.9))) == pytest.approx(0.9 * size, abs=1)


def test_top_p_zero_and_top_k_one_keep_one() -> None:
    logits = row(size=200)
    assert possible(logits, SamplingParams(top_p=0.0)) == {int(logits.argmax())}
    assert possible(logits, SamplingParams(top_k=1)) == {int(logits.argmax())}
    assert possible(logits, SamplingParams(min_p=1.0)) == {int(logits.argmax())}


def test_a_top_k_above_the_vocabulary_keeps_all() -> None:
    logits = np.zeros(10, np.float32)
    assert len(possible(logits, SamplingParams(top_k=10))) == len(possible(logits, SamplingParams(top_k=11))) == 10


@pytest.mark.parametrize("u", [2.0**-33, 0.5, 1.0 - 2.0**-23])
def test_an_impossible_token_is_never_drawn_at_the_edges(u: float) -> None:
    for possible_ones in range(1, 40):
        logits = np.full(60, -np.inf, np.float32)
        logits[10 : 10 + possible_ones] = np.linspace(-3, 0, possible_ones)
        numbers = np.full(60, u, np.float32)
        numbers[:10] = 2.0**-33  # what could not come first would come first
        assert 10 <= choose(logits, SamplingParams(), numbers) < 10 + possible_ones


def test_the_rounding_of_another_batch_does_not_change_the_draw() -> None:
    logits = row(size=50_000)
    other = logits + (np.random.default_rng(9).normal(size=logits.size) * 1e-5).astype(np.float32)
    draws = [request(position=position, temperature=1.5) for position in range(3000)]
    assert sum(sample(logits, draw) != sample(other, draw) for draw in draws) == 0


def test_draws_follow_the_distribution() -> None:
    logits = row(5, size=12) / 2
    params = {"temperature": 1.3}
    draws = Counter(sample(logits, request(position=p, **params)).token_id for p in range(20_000))
    probabilities = torch.softmax(torch.from_numpy(logits) / 1.3, -1).numpy()
    expected = probabilities * 20_000
    chi_square = sum((draws[token] - expected[token]) ** 2 / expected[token] for token in range(12))
    assert chi_square < 31.3  # 11 degrees of freedom, p = 0.001


# --- logprobs


def test_logprobs_are_the_models_own_whatever_the_parameters() -> None:
    logits = row()
    result = sample(logits, request(temperature=0.3, logit_bias={7: 100.0}, top_k=1, logprobs=5))
    expected = torch.log_softmax(torch.from_numpy(logits), -1)
    assert result.token_id == 7
    assert result.logprob == pytest.approx(float(expected[7]), abs=1e-5)
    top = expected.topk(5)
    assert [token for token, _ in result.top] == top.indices.tolist()
    assert [value for _, value in result.top] == pytest.approx(top.values.tolist(), abs=1e-5)


def test_no_logprobs_unless_asked_and_none_beside_the_tokens_own() -> None:
    assert sample(row(), request()) == Sampled(sample(row(), request()).token_id, None, ())
    result = sample(row(), request(logprobs=0))
    assert result.logprob is not None
    assert result.top == ()


def test_logprobs_survive_json_and_ties_go_to_lower_ids() -> None:
    logits = np.array([-np.inf, 1.0, 1.0, 1.0, -np.inf], np.float32)
    result = sample(logits, request(temperature=0.0, logprobs=20))
    assert [token for token, _ in result.top] == [1, 2, 3, 0, 4]
    assert result.top[3][1] == -9999.0
    assert json.loads(json.dumps(result.top, allow_nan=False))
    assert result.logprob == pytest.approx(-math.log(3))


# --- damaged rows


@pytest.mark.parametrize("damage", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_b011_a_damaged_row_fails_alone(damage: float, temperature: float) -> None:
    logits = np.stack([row(1), row(2), row(3)])
    requests = [request(temperature=temperature, logprobs=1) for _ in range(3)]
    healthy = sample_rows(logits, requests)
    logits[1, 1234] = damage
    results = sample_rows(logits, requests)
    assert isinstance(results[1], ValueError)
    assert [results[0], results[2]] == [healthy[0], healthy[2]]


def test_b011_a_request_that_leaves_no_token_fails_alone() -> None:
    logits = np.stack([row(1, size=4), row(2, size=4)])
    results = sample_rows(logits, [request(banned=[0, 1, 2, 3]), request()])
    assert isinstance(results[0], ValueError)
    assert isinstance(results[1], Sampled)


@pytest.mark.parametrize("params", [{"logit_bias": {4: 1.0}}, {"logit_bias": {-1: 1.0}}, {"banned": [9]}])
def test_b011_an_id_outside_the_vocabulary_fails_alone(params: dict[str, Any]) -> None:
    logits = np.stack([row(1, size=4), row(2, size=4)])
    results = sample_rows(logits, [request(**params), request()])
    assert isinstance(results[0], ValueError)
    assert isinstance(results[1], Sampled)


def test_a_token_depends_on_its_own_row_and_seed_only() -> None:
    logits = np.stack([row(seed) for seed in range(6)])
    requests = [request(seed=(seed, 0), position=4) for seed in range(6)]
    together = sample_rows(logits, requests)
    assert together == [sample(logits[index], requests[index]) for index in range(6)]
    assert sample_rows(logits[::-1], requests[::-1]) == together[::-1]
