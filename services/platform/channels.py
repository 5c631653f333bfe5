"""Shared channels, one an address, all with the same limits."""

from __future__ import annotations

import asyncio

import grpc

from services.platform.limits import client_options


class Channels:
    """Channels of one process. Make it inside the running event loop (never before a fork)."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to `address` (host:port), connected on first use."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = grpc.aio.insecure_channel(address, options=client_options())
        return channel

    async def drop(self, address: str) -> None:
        """Close the channel to an address that will not come back."""
        if (channel := self._channels.pop(address, None)) is not None:
            await channel.close()

    async def close(self) -> None:
        """Close all; calls still running are cancelled."""
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))
