"""Logging to standard error: one line an event, never a prompt, an answer or a key."""

from __future__ import annotations

import logging


def configure(service: str) -> None:
    """Set up the root logger. Libraries speak from WARNING on."""
    logging.basicConfig(
        level=logging.WARNING,
        format=f"%(asctime)s.%(msecs)03d {service} %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    logging.getLogger("services").setLevel(logging.INFO)
