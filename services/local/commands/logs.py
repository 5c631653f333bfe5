"""`tokenpath logs`"""

from __future__ import annotations

import argparse
import os

from services.local.errors import StackError
from services.local.folder import StackFolder
from services.local.plan import COLLECTOR, KV, STATE
from services.local.supervisor import log_tail

NAME = "logs"
_LAST = (COLLECTOR, STATE, KV)  # what is looked for is hardly ever in these
HELP = "show the last lines of the services' logs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("process", nargs="*", help="gateway, decode-0, ...; all of them without one")
    parser.add_argument("-n", "--lines", type=int, default=20, help="lines of each (default 20)")


def run(arguments: argparse.Namespace) -> int:
    folder = StackFolder.from_env(os.environ)
    names = (path.stem for path in folder.log("gateway").parent.glob("*.log"))
    there = sorted(names, key=lambda name: (_LAST.index(name) if name in _LAST else -1, name))
    if not there:
        raise StackError(f"no logs in {folder.path}; start the stack with `make up`")
    for name in arguments.process or there:
        if name not in there:
            raise StackError(f"no log of {name}; there are {', '.join(there)}")
        print(log_tail(folder.log(name), arguments.lines))
    return 0
