"""Which processes a stack has, and what they are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.local.config import StackConfig
from services.local.folder import StackFolder
from services.local.plan import ProcessPlan, StackPlan, Tier, make_plan, port_names


def plan_of(config: StackConfig, environment: dict[str, str] | None = None) -> StackPlan:
    names = (*port_names(config), "gateway")
    ports = {name: 30000 + index for index, name in enumerate(names)}
    return make_plan(config, ports, StackFolder(Path("/stack")), environment or {})


def process(plan: StackPlan, name: str) -> ProcessPlan:
    return next(one for one in plan.processes if one.name == name)


def test_stores_start_first_and_the_gateway_last() -> None:
    plan = plan_of(StackConfig(prefill=2, decode=1))
    assert [one.name for one in plan.processes] == [
        *("redis-state", "redis-kv", "collector"),
        *("auth", "router", "scheduler", "prefill-0", "prefill-1", "decode-0", "detokenizer", "gateway"),
    ]
    assert [one.tier for one in plan.processes] == sorted(one.tier for one in plan.processes)
    assert plan.processes[-1].tier is Tier.GATEWAY


def test_no_port_is_given_twice() -> None:
    ports = [port for one in plan_of(StackConfig(decode=3)).processes for port in one.ports.values()]
    assert len(ports) == len(set(ports))


def test_workers_do_not_spin_on_each_others_cores() -> None:
    environment = process(plan_of(StackConfig(threads=2)), "decode-0").environment({})
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert environment["GOMP_SPINCOUNT"] == "0"
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "2"
    assert environment["TOKENPATH_DECODE_THREADS"] == "2"


def test_the_caller_changes_choices_but_not_the_wiring() -> None:
    caller = {"TOKENPATH_DECODE_DTYPE": "float32", "TOKENPATH_DECODE_PORT": "1", "PATH": "/bin"}
    plan = process(plan_of(StackConfig()), "decode-0")
    environment = plan.environment(caller)
    assert environment["TOKENPATH_DECODE_DTYPE"] == "float32"
    assert environment["TOKENPATH_DECODE_PORT"] == str(plan.ports["grpc"])
    assert environment["PATH"] == "/bin"


def test_a_proxy_of_the_caller_does_not_come_between_the_services() -> None:
    environment = process(plan_of(StackConfig()), "gateway").environment({"no_proxy": "example.org"})
    assert environment["no_proxy"] == "127.0.0.1,example.org"
    assert environment["NO_PROXY"] == "127.0.0.1"


def test_workers_of_a_role_differ_in_port_and_instance() -> None:
    plan = plan_of(StackConfig(decode=2))
    first, second = (process(plan, name).environment({}) for name in ("decode-0", "decode-1"))
    assert first["TOKENPATH_DECODE_INSTANCE"] == "decode-0"
    assert second["TOKENPATH_DECODE_INSTANCE"] == "decode-1"
    assert first["TOKENPATH_DECODE_PORT"] != second["TOKENPATH_DECODE_PORT"]


def test_spans_go_to_the_stacks_own_collector() -> None:
    plan = plan_of(StackConfig())
    otlp = process(plan, "collector").ports["otlp"]
    endpoint = f"http://127.0.0.1:{otlp}"
    assert process(plan, "auth").environment({})["OTEL_EXPORTER_OTLP_ENDPOINT"] == endpoint
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in process(plan, "collector").environment(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    )


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_a_caller_with_a_collector_gets_no_second_one(name: str) -> None:
    caller = {name: "http://traces.example:4317"}
    plan = plan_of(StackConfig(), caller)
    assert "collector" not in [one.name for one in plan.processes]
    assert "collector" not in plan.urls
    assert process(plan, "gateway").environment(caller)[name] == caller[name]


def test_the_two_redis_roles_keep_what_is_theirs() -> None:
    plan = plan_of(StackConfig(kv_store_mb=64))
    state, kv = (" ".join(process(plan, name).command) for name in ("redis-state", "redis-kv"))
    assert "--appendonly yes" in state
    assert "--maxmemory-policy noeviction" in state
    assert "--appendonly no" in kv
    assert "--maxmemory 64mb --maxmemory-policy allkeys-lru" in kv
