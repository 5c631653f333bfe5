"""`tokenpath trace ID`"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from services.local.errors import StackError
from services.local.folder import StackFolder
from services.local.gateway_client import running
from services.local.hints import tokenpath
from services.local.last import resolve
from services.local.terminal import coloured
from services.local.trace_view import render

NAME = "trace"
HELP = "show the spans of a request as a tree, or write them to a file for Jaeger's UI"
# Services send their spans in batches, so a trace is whole a moment after its request.
ARRIVAL_S = 5.0
QUIET_S = 1.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", default="last", help="trace id, request id, or `last` (the default)")
    parser.add_argument("--jaeger", type=Path, metavar="FILE", help='write it for Jaeger\'s UI ("Upload", "JSON File")')


def run(arguments: argparse.Namespace) -> int:
    folder = StackFolder.from_env(os.environ)
    record = running(folder)
    if "collector" not in record.urls:
        raise StackError("this stack sends its traces to OTEL_EXPORTER_OTLP_ENDPOINT; look at them there")
    identity = resolve(arguments.id, folder)
    with httpx.Client(base_url=record.urls["collector"], timeout=5.0, trust_env=False) as collector:
        try:
            trace = _whole_trace(collector, identity)
            if arguments.jaeger:
                content = collector.get(f"/traces/{trace['trace_id']}/jaeger").json()
                _write(arguments.jaeger, json.dumps(content))
                print(f"{len(trace['spans'])} spans written to {arguments.jaeger}")
                return 0
        except httpx.HTTPError as error:
            raise StackError(
                f"the collector does not answer ({type(error).__name__}); see `{tokenpath('status')}`"
            ) from error
    print(render(trace["spans"], colour=coloured()))
    return 0


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content)
    except OSError as error:
        raise StackError(f"can't write {path}: {error.strerror}; name a file in a folder that is there") from error


def _whole_trace(collector: httpx.Client, identity: str) -> Mapping[str, Any]:
    """The trace once it has its root and no more spans come. Raises StackError when it does not arrive."""
    deadline = time.monotonic() + ARRIVAL_S
    seen, since, trace = 0, time.monotonic(), {}
    while time.monotonic() < deadline:
        reply = collector.get(f"/traces/{identity}")
        if reply.status_code == 200:
            trace = reply.json()
            if len(trace["spans"]) != seen:
                seen, since = len(trace["spans"]), time.monotonic()
            old = time.time() - max(span["end_ns"] for span in trace["spans"]) / 1e9 > ARRIVAL_S
            if old or time.monotonic() - since > QUIET_S:
                break
        time.sleep(0.1)
    if not trace:
        raise StackError(f"no trace of {identity} has arrived; the collector keeps the last ones only")
    return trace
