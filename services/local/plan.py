"""Which processes a stack consists of, with which environment, ports and order. Pure: starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path

from services.local.config import StackConfig
from services.local.folder import StackFolder
from services.local.ports import LOOPBACK
from services.local.redis_server import find_server, kv_command, state_command

STATE, KV, COLLECTOR, GATEWAY = "redis-state", "redis-kv", "collector", "gateway"
OTLP_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
DRAIN_S = 5


class Tier(IntEnum):
    """Processes of one tier start together, when those of the tiers below serve, and stop together before them."""

    STORES = 0
    SERVICES = 1
    GATEWAY = 2


@dataclass(frozen=True)
class ProcessPlan:
    """One process to start. The caller's environment may change `defaults` but not `wiring`, which joins the stack."""

    name: str
    command: tuple[str, ...]
    tier: Tier
    ports: dict[str, int]
    probe: str
    defaults: dict[str, str] = field(default_factory=dict)
    wiring: dict[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    data: Path | None = None  # a folder that must be there

    def environment(self, caller: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of the process."""
        kept = {key: value for key, value in caller.items() if key not in self.removed}
        # gRPC would otherwise ask a proxy of the caller's environment for the way to loopback.
        direct = {name: ",".join(filter(None, (LOOPBACK, caller.get(name)))) for name in ("no_proxy", "NO_PROXY")}
        return {**self.defaults, **kept, **direct, **self.wiring}


@dataclass(frozen=True)
class StackPlan:
    """All processes in starting order, and the addresses that a user may want."""

    processes: tuple[ProcessPlan, ...]
    urls: dict[str, str]


def has_own_collector(environment: Mapping[str, str]) -> bool:
    """Whether the caller sends spans somewhere already, so that the stack needs no receiver."""
    return any(environment.get(name) for name in OTLP_VARIABLES)


def service_names(config: StackConfig) -> tuple[str, ...]:
    """The processes that run `python -m services.<name>`, gateway last."""
    workers = [f"{role}-{index}" for role in ("prefill", "decode") for index in range(getattr(config, role))]
    return ("auth", "router", "scheduler", *workers, "detokenizer", GATEWAY)


def port_names(config: StackConfig) -> tuple[str, ...]:
    """Every port of the stack but the gateway's HTTP port; `<name>.metrics` is where a service shows its metrics."""
    services = [name for name in service_names(config) if name != GATEWAY]
    metrics = [f"{name}.metrics" for name in services]
    return (STATE, KV, COLLECTOR, f"{COLLECTOR}.http", f"{GATEWAY}.grpc", *services, *metrics)


def make_plan(
    config: StackConfig, ports: Mapping[str, int], folder: StackFolder, environment: Mapping[str, str]
) -> StackPlan:
    """Plan a stack on the given ports: those of `port_names` and "gateway". StackError without a Redis server."""
    urls = {
        "gateway": f"http://{LOOPBACK}:{ports[GATEWAY]}",
        "state": f"redis://{LOOPBACK}:{ports[STATE]}/0",
        "kv": f"redis://{LOOPBACK}:{ports[KV]}/0",
    }
    stores = [*_redis_plans(config, ports, folder)]
    traced: dict[str, str] = {}
    if not has_own_collector(environment):
        urls["collector"] = f"http://{LOOPBACK}:{ports[f'{COLLECTOR}.http']}"
        stores.append(_collector_plan(ports, folder))
        traced = {OTLP_VARIABLES[0]: f"http://{LOOPBACK}:{ports[COLLECTOR]}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    services = [_service_plan(name, config, ports, urls) for name in service_names(config)]
    return StackPlan((*stores, *(replace(plan, wiring={**plan.wiring, **traced}) for plan in services)), urls)


def _redis_plans(config: StackConfig, ports: Mapping[str, int], folder: StackFolder) -> tuple[ProcessPlan, ...]:
    server = find_server()
    commands = {
        STATE: state_command(server, ports[STATE], folder.data(STATE)),
        KV: kv_command(server, ports[KV], folder.data(KV), config.kv_store_mb),
    }
    return tuple(
        ProcessPlan(
            name,
            command,
            Tier.STORES,
            {"redis": ports[name]},
            f"redis://{LOOPBACK}:{ports[name]}",
            data=folder.data(name),
        )
        for name, command in commands.items()
    )


def _collector_plan(ports: Mapping[str, int], folder: StackFolder) -> ProcessPlan:
    http = ports[f"{COLLECTOR}.http"]
    return ProcessPlan(
        COLLECTOR,
        (sys.executable, "-m", "services.local.collector"),
        Tier.STORES,
        {"otlp": ports[COLLECTOR], "http": http},
        f"http://{LOOPBACK}:{http}/health",
        wiring={
            "TOKENPATH_COLLECTOR_PORT": str(ports[COLLECTOR]),
            "TOKENPATH_COLLECTOR_HTTP_PORT": str(http),
            "TOKENPATH_COLLECTOR_JAEGER_FILE": str(folder.jaeger_file),
        },
        removed=OTLP_VARIABLES,
    )


def _service_plan(name: str, config: StackConfig, ports: Mapping[str, int], urls: Mapping[str, str]) -> ProcessPlan:
    service = name.partition("-")[0]
    if name == GATEWAY:
        own_ports = {"http": ports[GATEWAY], "grpc": ports[f"{GATEWAY}.grpc"]}
    else:
        own_ports = {"grpc": ports[name], "metrics": ports[f"{name}.metrics"]}
    own = {VARIABLES[kind]: str(port) for kind, port in own_ports.items()} | {"INSTANCE": name}
    own |= {f"{peer.upper()}_ADDRESS": f"{LOOPBACK}:{ports[peer]}" for peer in PEERS.get(service, ())}
    own |= {f"{store.upper()}_URL": urls[store] for store in STORES.get(service, ())}
    health = f"http://{LOOPBACK}:{ports[name]}/health/ready"
    return ProcessPlan(
        name,
        (sys.executable, "-m", f"services.{service}"),
        Tier.GATEWAY if name == GATEWAY else Tier.SERVICES,
        own_ports,
        health if name == GATEWAY else f"grpc://{LOOPBACK}:{ports[name]}",
        defaults={**_choices(service, config), **(_compute(config) if service in WORKERS else SINGLE_THREAD)},
        wiring={f"TOKENPATH_{service.upper()}_{key}": value for key, value in own.items()},
    )


WORKERS = ("prefill", "decode")
VARIABLES = {"grpc": "PORT", "metrics": "METRICS_PORT", "http": "HTTP_PORT"}
PEERS = {GATEWAY: ("auth", "router", "scheduler", "detokenizer")}
STORES = {
    "auth": ("state",),
    "router": ("state",),
    "scheduler": ("state",),
    "prefill": ("state", "kv"),
    "decode": ("state", "kv"),
}

# A service that waits and parses has no use for a pool of threads in a library.
SINGLE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}


def _compute(config: StackConfig) -> dict[str, str]:
    """Two workers whose idle OpenMP threads spin on the same cores run at a hundredth of their speed, so they wait
    passively. The allocator keeps freed memory: a fresh mapping for every KV page would cost more than its copy."""
    return {
        "OMP_NUM_THREADS": str(config.worker_threads),
        "MKL_NUM_THREADS": str(config.worker_threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "MALLOC_MMAP_THRESHOLD_": "1073741824",
        "MALLOC_TRIM_THRESHOLD_": "4294967296",
        "MALLOC_TOP_PAD_": "67108864",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _choices(service: str, config: StackConfig) -> dict[str, str]:
    """The user's choices that this service is told about."""
    chosen: dict[str, str] = {"DRAIN_S": str(DRAIN_S)}
    match service:
        case "gateway" | "detokenizer":
            chosen |= {"MODEL": config.model}
        case "router":
            chosen |= {"POLICY": config.policy, "MODE": config.mode}
        case "prefill" | "decode":
            chosen |= {"MODEL": config.model, "ENGINE": config.engine, "DTYPE": config.dtype}
            chosen |= {"THREADS": str(config.worker_threads)}
            if config.kv_blocks:
                chosen |= {"KV_BLOCKS": str(config.kv_blocks)}
    return {f"TOKENPATH_{service.upper()}_{key}": value for key, value in chosen.items()}
