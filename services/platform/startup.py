"""Why a service can't start."""

from __future__ import annotations


class StartupError(Exception):
    """A reason that the one who starts the service can act on: the message says what, where and what to do.

    `run_service` shows it as one line and exits with status 1; any other exception is a bug and shows its traceback.
    """
