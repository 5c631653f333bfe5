"""`tokenpath status`"""

from __future__ import annotations

import argparse
import os

from services.local import records
from services.local.errors import StackError
from services.local.folder import StackFolder
from services.local.status import statuses
from services.local.terminal import GREEN, RED, coloured, paint, size_words

NAME = "status"
HELP = "show each process of the stack with pid, ports, health, memory and uptime"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exits with 0 when every process serves, else 1."


def run(_: argparse.Namespace) -> int:
    record = records.load(StackFolder.from_env(os.environ).record)
    if record is None:
        raise StackError("no stack runs in this folder; start one with `make up`")
    looked = list(statuses(record))
    colour = coloured()
    print(f"{'process':<14}{'pid':>8}  {'health':<12}{'RSS':>10}{'PSS':>10}{'uptime':>10}  ports")
    for one in looked:
        health = paint(f"{one.health:<12}", GREEN if one.health == "serving" else RED, on=colour)
        ports = ", ".join(f"{name} {port}" for name, port in one.ports.items())
        memory = f"{size_words(one.rss):>10}{size_words(one.pss):>10}"
        print(f"{one.name:<14}{one.pid:>8}  {health}{memory}{_duration(one.uptime_s):>10}  {ports}")
    total = f"{size_words(sum(one.rss for one in looked)):>10}{size_words(sum(one.pss for one in looked)):>10}"
    print(f"{'total':<14}{'':>8}  {'':<12}{total}")
    if not record.ready:
        print("The stack is half-started; `make up` ends what is left and starts it again, `make down` ends it.")
    return 0 if record.ready and all(one.health == "serving" for one in looked) else 1


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
