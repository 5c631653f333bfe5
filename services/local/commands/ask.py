"""`tokenpath ask "..."`"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from services.local.errors import StackError
from services.local.folder import StackFolder
from services.local.gateway_client import Answer, Question, client_of
from services.local.hints import tokenpath
from services.local.terminal import DIM, coloured, paint

NAME = "ask"
HELP = "ask the model; the answer appears as its tokens arrive"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question")
    parser.add_argument("--system", help="system message")
    parser.add_argument("--max-tokens", type=int, default=256, help="default: 256")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: 0, the likeliest answer")
    parser.add_argument("--mode", choices=("disaggregated", "aggregated"), help="for this request only")
    parser.add_argument("--raw", action="store_true", help="print the chunks as JSON, one a line")


def run(arguments: argparse.Namespace) -> int:
    if not arguments.question.strip():
        raise StackError('the question is empty; ask something: make ask Q="Why is the sky blue?"')
    question = Question(
        arguments.question, arguments.system, arguments.max_tokens, arguments.temperature, arguments.mode
    )
    ask(StackFolder.from_env(os.environ), question, raw=arguments.raw)
    return 0


def ask(folder: StackFolder, question: Question, *, raw: bool = False) -> tuple[str, str]:
    """Stream the answer to standard output. Returns the text and the request's id, and keeps the id for `last`."""
    with client_of(folder) as gateway, gateway.ask(question) as answer:
        folder.last_request.write_text(answer.request_id)
        text = _print_raw(answer) if raw else _print_text(answer)
    return text, answer.request_id


def _print_text(answer: Answer) -> str:
    pieces: list[str] = []
    first_s = 0.0
    try:
        for piece in answer.texts():
            first_s = first_s or time.monotonic() - answer.sent
            pieces.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
    finally:
        print()  # whatever ended it, what is written next has a line of its own
    times = f"first text after {first_s * 1000:.0f} ms, all after {(time.monotonic() - answer.sent) * 1000:.0f} ms"
    print(paint(f"\n{answer.request_id}   {times}\nsee `{tokenpath('journey last')}`", DIM, on=coloured()))
    return "".join(pieces)


def _print_raw(answer: Answer) -> str:
    for event in answer.events:
        print(json.dumps(event, ensure_ascii=False), flush=True)
    return ""
