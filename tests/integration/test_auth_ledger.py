"""Stage 15: what it cost. One row a request, whatever happens."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from redis.asyncio import Redis

from services.platform.redis import connect
from tests.auth_harness import AuthClient, auth_service, rows, settle_request
from tests.latency_proxy import latency_proxy
from tests.redis_server import RedisServer, redis_server
from tokenpath.v1 import auth_pb2, common_pb2

WEIRD_IDS = [
    "'; DROP TABLE ledger; --",
    "nul\0in\0it",
    "nul",
    "\\u0000",
    "line\r\nbreak",
    "*",
    " ",
    "0",
    "ключ-鍵-🔑",
    "}{",
    "x" * 512,
]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    client = connect(server.url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def auth(server: RedisServer, redis: Redis) -> AsyncIterator[AuthClient]:
    async with auth_service(server.url) as client:
        yield client


async def test_a_row_says_everything_about_its_request(auth: AuthClient, redis: Redis) -> None:
    receipt = await auth.settle("req_1", attempts=2)
    [row] = await rows(redis)
    settled = int(row.pop("settled_unix_ms"))
    assert row == {
        "request_id": "req_1",
        "key_id": "key_1",
        "tenant": "demo",
        "model": "SmolLM2-135M-Instruct",
        "prompt_tokens": "100",
        "cached_tokens": "40",
        "completion_tokens": "10",
        "outcome": "done",
        "attempts": "2",
        "cost_nano_usd": "2200",  # 60 x 20 + 40 x 5 + 10 x 80
        "price_version": receipt.price_version,
        "started_unix_ms": "1700000000000",
    }
    assert settled > 1_700_000_000_000
    assert (receipt.cost_nano_usd, receipt.duplicate) == (2200, False)
    assert receipt.report.stage == "settle"
    assert receipt.report.attributes["cost_nano_usd"] == "2200"
    assert await redis.pttl("tp:settled:req_1") > 6 * 24 * 3600 * 1000
    assert await redis.pttl("tp:ledger") == -1


async def test_a_second_settle_returns_the_first_row(auth: AuthClient, redis: Redis) -> None:
    first = await auth.settle("req_1")
    second = await auth.settle("req_1", usage=common_pb2.Usage(prompt_tokens=9), outcome=auth_pb2.OUTCOME_FAILED)
    assert second.duplicate
    assert (second.row_id, second.cost_nano_usd) == (first.row_id, first.cost_nano_usd)
    assert second.price_version == first.price_version
    assert len(await rows(redis)) == 1


async def test_fifty_settles_at_once_over_two_replicas_write_one_row(
    auth: AuthClient, server: RedisServer, redis: Redis
) -> None:
    async with auth_service(server.url) as other:
        receipts = await asyncio.gather(*((auth, other)[n % 2].settle("req_1") for n in range(50)))
    assert len({receipt.row_id for receipt in receipts}) == 1
    assert sum(not receipt.duplicate for receipt in receipts) == 1
    assert len(await rows(redis)) == 1


async def test_b069_any_text_is_a_request_id_with_a_row_of_its_own(auth: AuthClient, redis: Redis) -> None:
    receipts = await asyncio.gather(*(auth.settle(text, model=text, tenant=text) for text in WEIRD_IDS))
    assert not any(receipt.duplicate for receipt in receipts)
    written = await rows(redis)
    assert sorted(row["request_id"] for row in written) == sorted(WEIRD_IDS)
    assert all(row["request_id"] == row["model"] == row["tenant"] for row in written)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"request_id": ""}, "request_id"),
        ({"request_id": "x" * 513}, "request_id"),
        ({"request_id": "é" * 257}, "request_id"),
        ({"model": "x" * 513}, "model"),
        ({"outcome": auth_pb2.OUTCOME_UNSPECIFIED}, "outcome"),
        ({"outcome": 77}, "outcome"),
        ({"usage": common_pb2.Usage(prompt_tokens=1, cached_tokens=2)}, "usage"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_and_leaves_nothing(
    auth: AuthClient, redis: Redis, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await auth.settle(**({"request_id": "req_1"} | fields))  # type: ignore[arg-type]
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    detail = dict(error.value.trailing_metadata() or ())["tokenpath-error-bin"]
    assert common_pb2.ErrorDetail.FromString(detail).param == param
    assert await redis.dbsize() == 0


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (auth_pb2.OUTCOME_ABORTED, "aborted"),
        (auth_pb2.OUTCOME_FAILED, "failed"),
        (auth_pb2.OUTCOME_EXPIRED, "expired"),
    ],
)
async def test_b063_a_request_that_did_not_finish_costs_what_it_used(
    auth: AuthClient, redis: Redis, outcome: auth_pb2.Outcome, name: str
) -> None:
    usage = common_pb2.Usage(prompt_tokens=50, completion_tokens=10)
    assert (await auth.settle("req_1", outcome=outcome, usage=usage)).cost_nano_usd == 50 * 20 + 10 * 80
    assert [row["outcome"] for row in await rows(redis)] == [name]


async def test_a_row_whose_answer_was_lost_is_not_written_again(server: RedisServer, redis: Redis) -> None:
    async with latency_proxy(server.port, 0) as proxy, auth_service(proxy.redis_url) as auth:
        await auth.settle("warm")
        proxy.lose_reply_to = b"EVALSHA"
        receipt = await auth.settle("req_1")
    assert receipt.duplicate
    assert [row["request_id"] for row in await rows(redis)] == ["warm", "req_1"]


async def test_callers_that_give_up_and_settle_again_make_one_row(
    auth: AuthClient, server: RedisServer, redis: Redis
) -> None:
    """They give up at every moment of a settle that takes 60 ms."""
    async with latency_proxy(server.port, 0.06) as proxy, auth_service(proxy.redis_url) as slow:
        await slow.settle("warm")

        async def give_up_then_repeat(number: int) -> auth_pb2.Receipt:
            try:
                return await slow.stub.Settle(settle_request(f"req_{number}"), timeout=0.004 * number)
            except grpc.aio.AioRpcError:
                return await auth.settle(f"req_{number}")

        await asyncio.gather(*(give_up_then_repeat(number) for number in range(1, 31)))
    written = [row["request_id"] for row in await rows(redis)]
    assert sorted(written) == sorted(["warm", *(f"req_{number}" for number in range(1, 31))])


async def test_b091_rows_outlive_a_killed_redis() -> None:
    # "everysec" may hold back writes that it has acknowledged while an fsync runs.
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        async with auth_service(server.url) as auth:
            before = [await auth.settle(f"req_{number}") for number in range(20)]
            await asyncio.to_thread(server.stop, kill=True)
            await asyncio.to_thread(server.start)
            after = [await auth.settle(f"req_{number}") for number in range(20)]
        redis = connect(server.url)
        assert len(await rows(redis)) == 20
        await redis.aclose()
    assert [receipt.row_id for receipt in after] == [receipt.row_id for receipt in before]
    assert all(receipt.duplicate for receipt in after)
