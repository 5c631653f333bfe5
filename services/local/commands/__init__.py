"""The commands of `tokenpath`, one a file: NAME, HELP, `add_arguments(parser)`, `run(arguments) -> exit status`."""

from __future__ import annotations

from services.local.commands import ask, demo, down, journey, logs, status, trace, up

COMMANDS = (up, down, status, ask, journey, trace, logs, demo)
