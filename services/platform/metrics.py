"""Prometheus: a registry a process, served on a port of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server

from services.platform.startup import StartupError


def new_registry() -> CollectorRegistry:
    """A registry with the process's own figures (memory, CPU, file descriptors)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class MetricsServer:
    """Serves a registry over HTTP from a thread of its own."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        """Raises StartupError when the port is taken."""
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise StartupError(f"can't serve metrics on {host}:{port}; set another METRICS_PORT: {error}") from None

    def close(self) -> None:
        """Stop serving and release the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2)
