"""`tokenpath demo`"""

from __future__ import annotations

import argparse
import os

from services.local.commands.ask import ask
from services.local.commands.journey import fetch
from services.local.config import StackConfig
from services.local.down import take_down
from services.local.errors import StackError
from services.local.folder import StackFolder
from services.local.gateway_client import Question
from services.local.journey_view import render
from services.local.terminal import BOLD, Progress, coloured, paint
from services.local.up import bring_up

NAME = "demo"
HELP = "start the stack, ask it one question, show the question's journey, and end the stack"
QUESTION = Question("What is the capital of France?", max_tokens=64, temperature=0.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "A stack that runs already is used and left running."


def run(arguments: argparse.Namespace) -> int:
    del arguments  # it takes none
    folder, progress = StackFolder.from_env(os.environ), Progress()
    _, started = bring_up(folder, StackConfig.from_env(os.environ), os.environ, progress)
    try:
        print("\n" + paint(f"> {QUESTION.text}", BOLD, on=coloured()))
        text, request_id = ask(folder, QUESTION)
        if not text:
            raise StackError(f"the answer is empty (request {request_id})")
        print("\n" + render(fetch(folder, request_id), colour=coloured()) + "\n")
    finally:
        if started:
            take_down(folder, progress)
    progress("the stack is down again; `make up` keeps it running" if started else "the stack ran before and stays up")
    return 0
