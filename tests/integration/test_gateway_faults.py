"""What the client sees, what is freed and what is billed when something fails or somebody leaves."""

import asyncio
import json
import random
import socket
import struct

import grpc
import httpx
import pytest

from services.platform.failures import Failure
from tests.eventually import eventually
from tests.fakes import KEY, MODEL, FakeStream, RunningGateway, endless, events, failing, free_port, running_gateway
from tokenpath.v1.auth_pb2 import Outcome
from tokenpath.v1.detokenizer_pb2 import Delta

pytestmark = pytest.mark.asyncio(loop_scope="module")

INTERNAL = Failure(grpc.StatusCode.INTERNAL, "the worker broke")
UNAVAILABLE = Failure(grpc.StatusCode.UNAVAILABLE, "the worker is gone")
INVALID = Failure(grpc.StatusCode.INVALID_ARGUMENT, "the worker refuses this", param="prompt")
FIRST, SECOND = "decode-0:1", "decode-1:1"


async def hang(stream: FakeStream) -> None:
    await asyncio.Event().wait()


# --- failures before the first byte


async def test_b036_a_failed_prefill_is_computed_by_decode(gateway: RunningGateway) -> None:
    gateway.fleet.prefill.failure = INTERNAL
    before = await gateway.metric('tokenpath_gateway_fallbacks_total{kind="prefill_to_decode"}')
    assert (await gateway.chat()).status_code == 200
    assert not gateway.fleet.detokenizer.engine_request().HasField("kv_transfer_params_json")
    assert len(gateway.fleet.prefill.requests) == 1
    assert await gateway.metric('tokenpath_gateway_fallbacks_total{kind="prefill_to_decode"}') == before + 1


async def test_b036_a_prefill_worker_whose_port_is_closed_costs_no_request(gateway: RunningGateway) -> None:
    for candidate in gateway.fleet.router.candidates:
        candidate.prefill.address = f"127.0.0.1:{free_port()}"
    assert (await gateway.chat()).status_code == 200


async def test_what_prefill_refuses_as_the_clients_mistake_is_a_400(gateway: RunningGateway) -> None:
    gateway.fleet.prefill.failure = INVALID
    answer = await gateway.chat()
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
    assert not gateway.fleet.detokenizer.requests


@pytest.mark.parametrize("failure", [INTERNAL, UNAVAILABLE, Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")])
async def test_b037_b057_a_decode_worker_that_fails_first_is_replaced_once(
    gateway: RunningGateway, failure: Failure
) -> None:
    gateway.fleet.detokenizer.scripts[FIRST] = failing(failure)
    answer = await gateway.chat(stream=True)
    assert answer.status_code == 200
    assert answer.headers["x-inference-pod"] == "decode-1"
    assert [list(request.exclude_workers) for request in gateway.fleet.router.requests] == [[], ["decode-0"]]
    assert [context.attempt for context in gateway.fleet.detokenizer.contexts] == [1, 2]
    assert len(gateway.fleet.prefill.requests) == 1  # the same pages serve the second worker
    assert (gateway.fleet.row.attempts, gateway.fleet.row.usage.completion_tokens) == (2, 4)


async def test_b057_two_tries_at_most_and_an_honest_status(gateway: RunningGateway) -> None:
    gateway.fleet.detokenizer.script = failing(UNAVAILABLE)
    answer = await gateway.chat(stream=True)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert len(gateway.fleet.detokenizer.requests) == 2
    await eventually(lambda: gateway.fleet.idle, "everything is free")


async def test_with_nobody_else_the_first_failure_is_told(gateway: RunningGateway) -> None:
    gateway.fleet.detokenizer.script = failing(INTERNAL)
    del gateway.fleet.router.candidates[1]
    answer = await gateway.chat()
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the worker broke")


async def test_b054_a_clients_mistake_is_not_tried_again(gateway: RunningGateway) -> None:
    gateway.fleet.detokenizer.script = failing(INVALID)
    assert (await gateway.chat()).status_code == 400
    assert len(gateway.fleet.detokenizer.requests) == 1


async def test_a_stream_cut_off_by_its_server_is_an_error_and_not_a_hang(gateway: RunningGateway) -> None:
    async def cancelled_by_peer(stream: FakeStream) -> None:
        await stream.context.abort(grpc.StatusCode.CANCELLED, "the server stops")

    gateway.fleet.detokenizer.script = cancelled_by_peer
    assert (await gateway.chat()).status_code == 503


async def test_an_answer_without_its_end_is_an_error(gateway: RunningGateway) -> None:
    async def stops(stream: FakeStream) -> None:
        await stream.say("x")

    gateway.fleet.detokenizer.script = stops
    assert (await gateway.chat()).status_code == 500


async def test_auth_or_router_that_do_not_answer_are_a_503(gateway: RunningGateway) -> None:
    gateway.fleet.auth.failure = UNAVAILABLE
    assert (await gateway.chat()).status_code == 503
    gateway.fleet.reset()
    gateway.fleet.router.failure = UNAVAILABLE
    answer = await gateway.chat(stream=True)
    assert (answer.status_code, answer.headers["retry-after-ms"]) == (503, "1000")


# --- failures after the first byte


async def test_b006_a_failure_in_mid_stream_is_an_error_event_and_the_end(gateway: RunningGateway) -> None:
    gateway.fleet.detokenizer.script = failing(INTERNAL, after_tokens=3)
    answer = await gateway.chat(stream=True)
    assert answer.status_code == 200
    *chunks, error = events(answer)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None]
    assert error["error"]["message"] == "the worker broke"
    assert "choices" not in error
    assert "[DONE]" not in answer.text
    assert len(gateway.fleet.detokenizer.requests) == 1
    row = gateway.fleet.row
    assert (row.outcome, row.usage.completion_tokens) == (Outcome.OUTCOME_FAILED, 3)


# --- clients that leave


async def leave(gateway: RunningGateway, after_events: int, *, stream: bool = True) -> None:
    """Open a request, read some events, close the connection."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": stream}
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=10) as http:
        headers = {"authorization": f"Bearer {KEY}"}
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            lines = answer.aiter_lines()
            for _ in range(2 * after_events):
                await anext(lines)


async def test_b028_b063_a_client_that_leaves_frees_the_slot_and_pays_for_what_was_made(
    gateway: RunningGateway,
) -> None:
    gateway.fleet.detokenizer.script = endless
    stays = asyncio.create_task(leave(gateway, after_events=10_000))
    await eventually(lambda: gateway.fleet.detokenizer.running, "a stream is open")
    async with asyncio.timeout(5):
        while await gateway.metric("tokenpath_gateway_open_streams") != 1:
            pass
    stays.cancel()
    await eventually(lambda: gateway.fleet.auth.rows, "the other stream is over")
    gateway.fleet.auth.rows.clear()
    await leave(gateway, after_events=10)
    await eventually(lambda: gateway.fleet.idle, "decode was cancelled and the slot given back", 2.0)
    await eventually(lambda: gateway.fleet.auth.rows, "the row is written", 2.0)
    row = gateway.fleet.row
    assert await gateway.metric("tokenpath_gateway_open_streams") == 0
    assert row.outcome == Outcome.OUTCOME_ABORTED
    assert row.usage.prompt_tokens > 0
    assert row.usage.completion_tokens >= 10


@pytest.mark.parametrize("where", ["queue", "prefill", "before the first token", "no stream"])
async def test_b028_leaving_at_any_stage_frees_everything(gateway: RunningGateway, where: str) -> None:
    fleet = gateway.fleet
    reached = {
        "queue": lambda: fleet.scheduler.queued,
        "prefill": lambda: fleet.prefill.running,
        "before the first token": lambda: fleet.detokenizer.running,
        "no stream": lambda: fleet.detokenizer.running,
    }[where]
    fleet.scheduler.slots = 0 if where == "queue" else 1
    fleet.prefill.delay_s = 30 if where == "prefill" else 0
    fleet.detokenizer.script = endless if where == "no stream" else hang
    request = asyncio.create_task(leave(gateway, 1, stream=where != "no stream"))
    await eventually(reached, f"the request is in {where}")
    request.cancel()
    await eventually(lambda: fleet.idle, "everything is free", 2.0)
    await eventually(lambda: bool(fleet.auth.rows) is (where != "queue"), "billed if work was done")
    assert await gateway.metric("tokenpath_gateway_open_streams") == 0


async def test_b022_one_of_two_requests_with_the_same_id_can_leave(gateway: RunningGateway) -> None:
    async def slow(stream: FakeStream) -> None:
        for _ in range(40):
            await stream.say(" x")
            await asyncio.sleep(0.005)
        await stream.say(".", finish="stop")
        await stream.end()

    gateway.fleet.detokenizer.script = slow
    stays = asyncio.create_task(gateway.chat({"x-request-id": "same"}, stream=True))
    leaves = asyncio.create_task(leave(gateway, 3))
    await leaves
    answer = await stays
    assert answer.text.endswith("data: [DONE]\n\n")
    assert len(events(answer)) == 41
    await eventually(lambda: gateway.fleet.idle, "both are over")
    assert (await gateway.chat({"x-request-id": "same"})).status_code == 200


async def test_b030_connections_reset_at_random_leave_nothing_behind(gateway: RunningGateway) -> None:
    fleet = gateway.fleet
    fleet.detokenizer.script = endless
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    whole = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    tasks = len(asyncio.all_tasks())
    chance = random.Random(3)
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", gateway.port)) as sock:
            sock.sendall(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
            await asyncio.sleep(chance.random() * 0.02)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with RST
    await eventually(lambda: fleet.idle, "everything is free", 5.0)
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks + 3, "no task is left", 5.0)
    assert await gateway.metric("tokenpath_gateway_in_flight_requests") == 0
    fleet.reset()
    assert (await gateway.chat()).status_code == 200


async def test_b028_one_log_line_at_most_for_an_abort(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.fleet.detokenizer.script = endless
    await leave(gateway, 2)
    await eventually(lambda: gateway.fleet.auth.rows, "the row is written")
    await eventually(lambda: gateway.fleet.idle, "all is free")
    assert len(caplog.records) <= 1


# --- deadlines


@pytest.mark.parametrize("value", ["0", "-5"])
async def test_b076_a_deadline_that_is_over_does_no_work(gateway: RunningGateway, value: str) -> None:
    for stream in (True, False):
        assert (await gateway.chat({"x-request-timeout-ms": value}, stream=stream)).status_code == 504
    assert gateway.fleet.auth.authorized == 0


@pytest.mark.parametrize("value", ["soon", "1.5", "", "9" * 20])
async def test_b076_garbage_is_no_deadline(gateway: RunningGateway, value: str) -> None:
    answer = await gateway.chat({"x-request-timeout-ms": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-request-timeout-ms")


async def test_b076_every_hop_gets_what_is_left(gateway: RunningGateway) -> None:
    assert (await gateway.chat({"x-request-timeout-ms": "5000"})).status_code == 200
    assert (await gateway.chat()).status_code == 200
    (mine, standard), auth = gateway.fleet.detokenizer.deadlines, gateway.fleet.auth.deadlines
    assert mine is not None
    assert standard is not None
    assert 3 < mine < 5
    assert 590 < standard <= 600
    assert all(left is not None and left < 2.1 for left in auth)


async def test_b076_the_deadline_ends_the_work_before_and_after_the_first_byte(gateway: RunningGateway) -> None:
    gateway.fleet.detokenizer.script = hang
    answer = await gateway.chat({"x-request-timeout-ms": "150"}, stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    await eventually(lambda: gateway.fleet.idle, "everything is free", 1.0)
    assert gateway.fleet.row.outcome == Outcome.OUTCOME_EXPIRED
    gateway.fleet.reset()
    gateway.fleet.detokenizer.script = endless
    answer = await gateway.chat({"x-request-timeout-ms": "150"}, stream=True)
    assert answer.status_code == 200
    assert events(answer)[-1]["error"]["code"] == "timeout"
    assert "[DONE]" not in answer.text
    await eventually(lambda: gateway.fleet.idle, "everything is free", 1.0)
    assert gateway.fleet.row.outcome == Outcome.OUTCOME_EXPIRED


# --- the ledger


async def test_a_row_is_written_once_before_the_answer_ends(gateway: RunningGateway) -> None:
    for stream in (True, False):
        gateway.fleet.reset()
        answer = await gateway.chat(stream=stream)
        row = gateway.fleet.auth.rows[answer.headers["x-tokenpath-request-id"]]
        assert (row.outcome, row.key_id, row.tenant) == (Outcome.OUTCOME_DONE, "key-acme", "acme")
        assert (row.usage.completion_tokens, row.attempts, row.model) == (4, 1, MODEL)


async def test_b067_streaming_costs_the_same_with_and_without_usage(gateway: RunningGateway) -> None:
    for fields in ({"stream": True}, {"stream": True, "stream_options": {"include_usage": False}}, {"stream": False}):
        await gateway.chat(**fields)
    assert len({row.usage.SerializeToString() for row in gateway.fleet.auth.rows.values()}) == 1


async def test_a_ledger_that_fails_delays_no_answer_and_loses_no_row(gateway: RunningGateway) -> None:
    gateway.fleet.auth.settle_failures = 3
    answer = await gateway.chat()
    assert answer.status_code == 200
    await eventually(lambda: gateway.fleet.auth.rows, "the row is written later", 5.0)
    assert gateway.fleet.row.usage.completion_tokens == 4
    assert await gateway.metric("tokenpath_gateway_settle_outbox_rows") == 0
    assert await gateway.metric("tokenpath_gateway_settle_retries_total") >= 3


async def test_a_row_that_auth_refuses_for_good_is_counted_and_logged_without_any_text(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.fleet.auth.settle_failures = 1
    gateway.fleet.auth.settle_failure = INVALID
    before = await gateway.metric('tokenpath_gateway_settle_lost_total{reason="invalid_argument"}')
    answer = await gateway.chat()
    assert answer.status_code == 200
    assert await gateway.metric('tokenpath_gateway_settle_lost_total{reason="invalid_argument"}') == before + 1
    assert answer.headers["x-tokenpath-request-id"] in caplog.text
    assert "France" not in caplog.text


async def test_b069_text_with_nul_is_billed_like_any_other(gateway: RunningGateway) -> None:
    assert (await gateway.chat(messages=[{"role": "user", "content": "a\x00b"}])).status_code == 200
    assert len(gateway.fleet.auth.rows) == 1


# --- shutdown and readiness, each with a gateway of its own


async def _after(first: asyncio.Event, second: asyncio.Event) -> None:
    await first.wait()
    second.set()


async def test_b095_a_shutdown_lets_streams_end_and_flushes_the_ledger() -> None:
    async with running_gateway(drain_s=5, settle_wait_s=0.02) as gateway:
        proceed = asyncio.Event()

        async def waits(stream: FakeStream) -> None:
            await stream.say("x")
            await proceed.wait()
            await stream.say(".", finish="stop")
            await stream.end()

        gateway.fleet.detokenizer.script = waits
        gateway.fleet.auth.settle_failures = 2
        answer = asyncio.create_task(gateway.chat(stream=True))
        await eventually(lambda: gateway.fleet.detokenizer.running, "a stream is open")
        fleet, stopping = gateway.fleet, gateway.runtime.stopping
        asyncio.create_task(_after(stopping, proceed))  # noqa: RUF006
    assert (await answer).text.endswith("data: [DONE]\n\n")
    assert len(fleet.auth.rows) == 1


async def test_b095_at_the_end_of_the_drain_a_stream_gets_an_error_event() -> None:
    async with running_gateway(drain_s=0.2) as gateway:
        gateway.fleet.detokenizer.script = endless
        answer = asyncio.create_task(gateway.chat(stream=True))
        await eventually(lambda: gateway.fleet.detokenizer.running, "a stream is open")
        fleet = gateway.fleet
    assert events(await answer)[-1]["error"]["code"] == "shutting_down"
    assert fleet.row.outcome == Outcome.OUTCOME_FAILED


async def test_readiness_follows_what_a_request_would_meet() -> None:
    async with running_gateway(fleet_poll_s=0.02) as gateway:

        async def becomes(status: int) -> None:
            async with asyncio.timeout(5):
                while (await gateway.http.get("/health/ready")).status_code != status:
                    pass

        await becomes(200)
        candidates = list(gateway.fleet.router.candidates)
        gateway.fleet.router.candidates.clear()
        await becomes(503)
        gateway.fleet.router.candidates.extend(candidates)
        await becomes(200)
        gateway.fleet.router.stale = True
        await becomes(503)
        assert (await gateway.http.get("/health")).status_code == 200


async def test_a_silent_stream_gets_comments_that_clients_skip() -> None:
    async with running_gateway(ping_s=0.05) as gateway:

        async def pauses(stream: FakeStream) -> None:
            await stream.say("a")
            await asyncio.sleep(0.4)
            await stream.send(Delta(text="b", tokens=1, finish_reason="stop"))
            await stream.end()

        gateway.fleet.detokenizer.script = pauses
        answer = await gateway.chat(stream=True)
        messages = answer.text.split("\n\n")
        assert messages.count(": ping") >= 3
        assert [event["choices"][0]["delta"]["content"] for event in events(answer)] == ["a", "b"]
