"""`tokenpath up`"""

from __future__ import annotations

import argparse
import os

from services.local.config import StackConfig
from services.local.folder import StackFolder
from services.local.records import StackRecord
from services.local.terminal import Progress
from services.local.up import bring_up

NAME = "up"
HELP = "start the whole stack on this machine and wait for a first real answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Choices are environment variables: TOKENPATH_LOCAL_ENGINE, _MODEL, _MODE, _PREFILL, _DECODE, ..."


def run(_: argparse.Namespace) -> int:
    progress = Progress()
    record, started = bring_up(StackFolder.from_env(os.environ), StackConfig.from_env(os.environ), os.environ, progress)
    progress("the stack is ready" if started else "the stack of this folder runs already")
    print(welcome(record))
    return 0


def welcome(record: StackRecord) -> str:
    """Every address, the key, and what to do next."""
    gateway, key = record.urls["gateway"], record.api_key
    lines = [
        "",
        f"  Gateway (OpenAI API)   {gateway}/v1",
        f"  API key                {key}",
        f"  Metrics                {gateway}/metrics",
        f"  Traces                 {record.urls['collector']}/traces" if "collector" in record.urls else "",
        f"  Redis, state           {record.urls['state']}",
        f"  Redis, KV pages        {record.urls['kv']}",
        *(
            f"  {process.name:<22} 127.0.0.1:{process.ports['grpc']}   metrics http://127.0.0.1:{process.ports['metrics']}/metrics"
            for process in record.processes
            if "metrics" in process.ports
        ),
        "",
        f"  curl -N {gateway}/v1/chat/completions \\",
        f"    -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\",
        """    -d '{"model": "MODEL", "stream": true, "messages": [{"role": "user", "content": "Hello!"}]}'""".replace(
            "MODEL", str(record.config["model"])
        ),
        "",
        '  make ask Q="What is the capital of France?"   ask, and see the answer stream in',
        "  .venv/bin/tokenpath journey last              where every millisecond of it went",
        "  .venv/bin/tokenpath trace last                its spans",
        "  make status, make down                        look at the processes; end them",
    ]
    return "\n".join(lines)
