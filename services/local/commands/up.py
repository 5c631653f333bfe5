"""`tokenpath up`"""

from __future__ import annotations

import argparse
import json
import os

from services.local.config import StackConfig
from services.local.folder import StackFolder
from services.local.gateway_client import Question, client_of
from services.local.hints import tokenpath
from services.local.ports import LOOPBACK
from services.local.records import ProcessRecord, StackRecord
from services.local.terminal import Progress
from services.local.up import bring_up

NAME = "up"
HELP = "start the whole stack on this machine and wait for a first real answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Choices are environment variables: TOKENPATH_LOCAL_ENGINE, _MODEL, _MODE, _PREFILL, _DECODE, ..."


def run(_: argparse.Namespace) -> int:
    folder, progress = StackFolder.from_env(os.environ), Progress()
    record, started = bring_up(folder, StackConfig.from_env(os.environ), os.environ, progress)
    progress("the stack is ready" if started else "the stack of this folder runs already")
    with client_of(folder) as gateway:
        print(welcome(record, gateway.model()))
    return 0


def welcome(record: StackRecord, model: str) -> str:
    """Every address, the key, and what to do next. `model` as the gateway serves it."""
    urls, key = record.urls, record.api_key
    addresses = {
        "Gateway (OpenAI API)": f"{urls['gateway']}/v1",
        "API key": key,
        "Metrics": f"{urls['gateway']}/metrics",
        "Traces": f"{urls['collector']}/traces" if "collector" in urls else "sent to OTEL_EXPORTER_OTLP_ENDPOINT",
        "Redis, state": urls["state"],
        "Redis, KV pages": urls["kv"],
        **{process.name: _service_addresses(process) for process in record.processes if "metrics" in process.ports},
    }
    question = Question("What is the capital of France?", temperature=0.0)
    lines = [
        *(f"  {name:<22} {address}" for name, address in addresses.items()),
        "",
        f"  curl -N {urls['gateway']}/v1/chat/completions \\",
        f"    -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\",
        f"    -d '{json.dumps(question.body(model))}'",
        "",
        *_commands(),
    ]
    return "\n".join(["", *lines])


def _commands() -> list[str]:
    what_they_show = {
        tokenpath('ask "What is the capital of France?"'): "the answer, as it comes",
        tokenpath("journey last"): "where every millisecond of it went",
        tokenpath("trace last"): "its spans",
        "make status, make down": "look at the processes; end them",
    }
    width = max(map(len, what_they_show))
    return [f"  {command:<{width}}   {shows}" for command, shows in what_they_show.items()]


def _service_addresses(process: ProcessRecord) -> str:
    return f"{LOOPBACK}:{process.ports['grpc']} (gRPC), http://{LOOPBACK}:{process.ports['metrics']}/metrics"
