"""The `tokenpath` command."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from services.local.errors import StackError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. What a user can act on is one line, not a traceback."""
    try:
        return _run(arguments)
    except StackError as error:
        print(f"tokenpath: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tokenpath: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (`| head`) has left; nothing is wrong.
        from services.local.terminal import discard_output

        discard_output()
        return 0


def _run(arguments: Sequence[str] | None) -> int:
    # Imported here: it takes a good part of a second, in which Ctrl-C should not show a traceback either.
    from services.local.commands import COMMANDS
    from services.local.terminal import take_any_character

    take_any_character()
    parser = argparse.ArgumentParser(prog="tokenpath", description="Watch one LLM request pass through every stage.")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in COMMANDS:
        command = subparsers.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    chosen = parser.parse_args(arguments)
    # `up` cleans up after itself whatever ends it: a closed terminal and a `kill` as well as Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` sets it
            signal.signal(number, _end)
    return int(chosen.run(chosen))


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
