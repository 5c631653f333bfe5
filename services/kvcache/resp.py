"""Redis commands as bytes (https://redis.io/docs/latest/develop/reference/protocol-spec/)."""

from typing import TypeAlias

Chunk: TypeAlias = bytes | memoryview


def command(*parts: bytes) -> bytes:
    """One command of short parts."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def set_command(key: bytes, header: bytes, payload: Chunk, ttl_ms: bytes) -> tuple[Chunk, Chunk, Chunk]:
    """`SET key header+payload PX ttl_ms` in three chunks; the payload is not copied.

    payload: bytes, or a contiguous view of bytes.
    """
    size = len(header) + len(payload)
    before = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b" % (len(key), key, size, header)
    return before, payload, b"\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(ttl_ms), ttl_ms)
