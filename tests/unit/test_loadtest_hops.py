"""The bench's cheap client must count what an honest parser would count."""

from __future__ import annotations

import asyncio
import json

import pytest

from loadtest.hops.connection import StreamConnection, StreamFailed
from loadtest.hops.figures import Figures
from loadtest.hops.job import Job, Result, Sample
from loadtest.hops.machine import machine
from loadtest.hops.phases import Throughput, TokenCost, TtftCost, _gaps_ms
from loadtest.hops.reference import HopCost
from loadtest.hops.table import table
from loadtest.hops.workload import Script, bodies

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = '{"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}'


def chunk(*events: str) -> bytes:
    data = "".join(f"data: {event}\n\n" for event in events).encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def text(piece: str) -> str:
    return json.dumps({"id": "chatcmpl-1", "choices": [{"delta": {"content": piece}}]}, separators=(",", ":"))


ANSWER = HEAD + chunk(text("")) + chunk(text("a")) + chunk(text("b"), text("c")) + chunk(USAGE, "[DONE]") + b"0\r\n\r\n"


class Wire(asyncio.Transport):
    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


async def read(parts: list[bytes], end: Exception | None = None) -> Sample:
    connection = StreamConnection()
    connection.connection_made(Wire())
    answer = asyncio.create_task(connection.stream(b"", 5))
    await asyncio.sleep(0)
    for part in parts:
        connection.data_received(part)
    connection.connection_lost(end)
    return await answer


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
async def test_texts_are_counted_wherever_the_network_cuts(size):
    sample = await read([ANSWER[at : at + size] for at in range(0, len(ANSWER), size)])
    assert (sample.answer_id, sample.texts, sample.completion_tokens) == ("chatcmpl-1", 3, 3)


@pytest.mark.parametrize(
    "broken",
    [
        b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n",
        ANSWER[:-20],
        HEAD + chunk(text("a"), '{"error":{"code":"worker_failed"}}'),
        HEAD + chunk(text("a"), "[DONE]") + b"0\r\n\r\n",
    ],
)
async def test_what_is_not_a_whole_stream_fails_the_bench(broken):
    with pytest.raises(StreamFailed):
        await read([broken])


def test_a_job_and_a_result_survive_the_pipe():
    job = Job("h", 1, "/p", {"a": "b"}, ["{}"], 2)
    assert Job.from_json(job.to_json()) == job
    result = Result([Sample("id", 0, 2_000_000_000, [(1_000_000, 1), (5_000_000, 2)], 3)], 0.5)
    assert Result.from_json(result.to_json()) == result
    assert (result.tokens, result.wall_s, result.samples[0].ttft_ms) == (3, 2.0, 1.0)
    assert _gaps_ms(result.samples[0]) == [4.0, 0.0]


def test_every_prompt_differs_early_and_carries_its_script():
    rows = [json.loads(body)["messages"][0]["content"] for body in bodies(Script(5, itl_ms=20), "m", 30, 100)]
    assert len({row[:4] for row in rows}) == 30
    assert json.loads(rows[0].rpartition("SCRIPT:")[2]) == {"pieces": [" the"], "repeat": 5, "ttft_ms": 0, "itl_ms": 20}


def test_the_table_and_the_json_tell_the_same():
    services = {"gateway": 80.0, "decode-0": 40.0}
    figures = Figures(
        "disaggregated",
        machine(),
        HopCost(0.5, 0.9, 40_000, 40),
        TtftCost(0.0, 5.0, 9.0, 300, {"auth": 0.5}),
        TtftCost(10.0, 7.0, 11.0, 300, {"auth": 0.5}),
        [TokenCost(1, 0.3, 0.9, 2.0), TokenCost(32, 1.0, 4.0, 3.0)],
        Throughput(None, 8000, [8000.0], 60, services, {"load": 3}, 1.0, 0.2),
        Throughput(6400, 6390, [6390.0], 120, services, {"load": 3}, 1.0, 1.0),
    )
    shown = table(figures)
    assert "10.0 plain gRPC calls of 0.50 ms, aim 6 ms" in shown
    assert "engine makes 6400 tokens/s" in shown
    kept = json.loads(figures.to_json())
    assert (kept["ttft_added_ms_p50"], kept["ttft_added_ms_p99"]) == (5.0, 9.0)
    assert (kept["streamed_tokens_per_s"], kept["cpu_us_per_token"]) == (8000, 120)
