"""The bench's figures as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loadtest.hops.machine import Machine
from loadtest.hops.phases import Throughput, TokenCost, TtftCost
from loadtest.hops.reference import HopCost

AIM_TTFT_MS = 6.0
AIM_TOKENS_PER_S = 5000.0


def table(machine: Machine, hop: HopCost, ttft: TtftCost, tokens: Sequence[TokenCost], fast: Throughput) -> str:
    return "\n".join(_lines(machine, hop, ttft, tokens, fast))


def _lines(
    machine: Machine, hop: HopCost, ttft: TtftCost, tokens: Sequence[TokenCost], fast: Throughput
) -> Iterator[str]:
    yield f"{machine.cores} cores of {machine.cpu}, load average {machine.load_average_before:.2f} before"
    yield ""
    yield f"{'added by all services together':<44}{'p50':>10}{'p99':>10}   {'aim':<12}in plain gRPC calls"
    yield (
        f"{'first token, 1 client':<44}{ttft.added_ms_p50:>7.2f} ms{ttft.added_ms_p99:>7.2f} ms   "
        f"{f'<= {AIM_TTFT_MS:g} ms':<12}{ttft.added_ms_p50 / hop.unary_ms_p50:.1f} x {hop.unary_ms_p50:.2f} ms"
    )
    for cost in tokens:
        name = f"each further token, {cost.clients} client{'s' * (cost.clients > 1)}"
        yield f"{name:<44}{cost.added_ms_p50:>7.2f} ms{cost.added_ms_p99:>7.2f} ms"
        yield f"{'  of which the second (KV hand-off)':<44}{cost.second_token_added_ms_p50:>7.2f} ms"
    yield ""
    yield (
        f"{'streamed tokens/s, 32 clients':<44}{fast.tokens_per_s:>10.0f}{'':13}{f'>= {AIM_TOKENS_PER_S:.0f}':<12}"
        f"{hop.stream_messages_per_s / fast.tokens_per_s:.1f} x fewer than {hop.stream_messages_per_s:.0f}/s"
    )
    yield (
        f"{'CPU a token, us, all services':<44}{fast.cpu_us_per_token:>10.1f}{'':25}"
        f"{fast.cpu_us_per_token / hop.cpu_us_per_message:.1f} x {hop.cpu_us_per_message:.1f} us"
    )
    yield from _shares(fast.cpu_us_per_token_by_service)
    yield "  outside that sum"
    yield from _shares(fast.cpu_us_per_token_outside)
    yield ""
    yield f"first token, the gateway's own account, median ms (the script's {ttft.script_ms:g} ms included)"
    yield from _shares(ttft.parts_ms)


def _shares(values: Mapping[str, float]) -> Iterator[str]:
    for name, value in sorted(values.items(), key=lambda item: -item[1]):
        if value >= 0.005:
            yield f"    {name:<40}{value:>10.2f}"
