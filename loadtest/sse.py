"""Server-sent events from bytes, cut wherever the network cut them."""

from __future__ import annotations


class SseParser:
    """Feed it bytes as they come; it returns the data of every event that they complete.

    Comments and fields other than `data` are dropped; several data lines of one event are joined by a
    line feed, as the SSE standard says.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that `chunk` completes, oldest first."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode())
            elif not line and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events
