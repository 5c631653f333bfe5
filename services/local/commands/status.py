"""`tokenpath status`"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

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
    if hint := _hint(record.ready, [one.health for one in looked]):
        print(hint)
    return 1 if hint else 0


def _hint(ready: bool, healths: Sequence[str]) -> str:
    """What to do about a stack that is not whole; empty for one that serves."""
    if all(health == "gone" for health in healths):
        return "Nothing of this stack runs any more; `make up` starts it again."
    what_to_do = "`make up` ends what is left and starts it again, `make down` ends it."
    if not ready:
        return f"The stack is half-started; {what_to_do}"
    return "" if all(health == "serving" for health in healths) else f"The stack is not whole; {what_to_do}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"
