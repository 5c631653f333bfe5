"""`tokenpath journey ID`"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

from services.local.errors import RefusedError
from services.local.folder import StackFolder
from services.local.gateway_client import client_of
from services.local.journey_view import render
from services.local.last import resolve
from services.local.terminal import coloured

NAME = "journey"
HELP = "show where every millisecond of a request went"
SETTLED_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", default="last", help="request id, the answer's id, or `last` (the default)")
    parser.add_argument("--json", action="store_true", help="print it as the gateway gives it")


def run(arguments: argparse.Namespace) -> int:
    journey = fetch(StackFolder.from_env(os.environ), arguments.id)
    print(json.dumps(journey, indent=2) if arguments.json else render(journey, colour=coloured()))
    return 0


def fetch(folder: StackFolder, identity: str) -> Any:
    """The journey from the gateway. It is complete once the request is settled, moments after the last byte."""
    path = f"/v1/journeys/{resolve(identity, folder)}"
    deadline = time.monotonic() + SETTLED_S
    with client_of(folder) as gateway:
        while True:
            try:
                return gateway.get(path)
            except RefusedError as error:
                if error.status != 404 or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)
