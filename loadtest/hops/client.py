"""The load process: `python -m loadtest.hops.client`, a Job on stdin, a Result on stdout."""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from loadtest.hops.connection import StreamConnection
from loadtest.hops.job import Job, Result, Sample


async def run(job: Job) -> Result:
    """Do the job. Raises StreamFailed when any request failed: a bench of failures measures nothing."""
    requests = [_request(job, body) for body in job.bodies]
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(StreamConnection, job.host, job.port))[1] for _ in range(job.clients)]
    samples: list[Sample] = []

    async def client(number: int, connection: StreamConnection) -> None:
        for request in requests[number :: job.clients]:
            samples.append(await connection.stream(request, job.timeout_s))

    started = time.process_time()
    try:
        async with asyncio.TaskGroup() as group:
            for number, connection in enumerate(connections):
                group.create_task(client(number, connection))
    finally:
        for connection in connections:
            connection.close()
    return Result(samples, time.process_time() - started)


def _request(job: Job, body: str) -> bytes:
    payload = body.encode()
    lines = [
        f"POST {job.path} HTTP/1.1",
        f"host: {job.host}:{job.port}",
        "content-type: application/json",
        f"content-length: {len(payload)}",
        *(f"{name}: {value}" for name, value in job.headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


if __name__ == "__main__":
    result = uvloop.run(run(Job.from_json(sys.stdin.read())))
    sys.stdout.write(result.to_json())
