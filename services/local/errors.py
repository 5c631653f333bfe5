"""The one error that the local stack shows to its user."""

from __future__ import annotations


class StackError(Exception):
    """Something the user can act on; the message says what, where and what to do. Never a traceback for it."""


class RefusedError(StackError):
    """The gateway answered with an error; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the gateway refuses with status {status}: {message}")
        self.status = status
