"""`tokenpath down`"""

from __future__ import annotations

import argparse
import os

from services.local.down import take_down
from services.local.folder import StackFolder
from services.local.terminal import Progress

NAME = "down"
HELP = "end the processes of this folder's stack, and no others"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # it takes none


def run(_: argparse.Namespace) -> int:
    progress = Progress()
    ended = take_down(StackFolder.from_env(os.environ), progress)
    progress("the stack is down" if ended else "no stack runs in this folder")
    return 0
