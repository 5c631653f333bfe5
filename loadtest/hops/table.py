"""The bench's figures as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loadtest.hops.figures import Figures
from loadtest.hops.phases import Throughput, TtftCost
from loadtest.hops.reference import HopCost

AIM_TTFT_MS = 6.0
AIM_TOKENS_PER_S = 5000.0
NAME = 46


def table(figures: Figures) -> str:
    return "\n".join(_lines(figures))


def _lines(figures: Figures) -> Iterator[str]:
    machine, hop = figures.machine, figures.reference
    busy = f"load average {machine.load_average_before:.2f} before"
    yield f"{figures.mode}; {machine.cores} cores of {machine.cpu}, {busy}"
    yield ""
    yield f"{'added by all services together':<{NAME}}{'p50':>10}{'p99':>10}"
    yield _ttft("first token, 1 client", figures.ttft, hop) + f", aim {AIM_TTFT_MS:g} ms"
    yield _ttft(f"  the same after {figures.ttft_after_pause.script_ms:g} ms of waiting", figures.ttft_after_pause, hop)
    for cost in figures.tokens:
        name = f"each further token, {cost.clients} client{'s' * (cost.clients > 1)}"
        yield f"{name:<{NAME}}{cost.added_ms_p50:>7.2f} ms{cost.added_ms_p99:>7.2f} ms"
        yield f"{'  of which the second (KV hand-off)':<{NAME}}{cost.second_token_added_ms_p50:>7.2f} ms"
    yield ""
    yield f"{'32 streams':<{NAME}}{'tokens/s':>10}{'CPU us/token':>14}{'reads/token':>13}"
    yield _throughput("engine as fast as it goes", figures.fast) + f"   aim {AIM_TOKENS_PER_S:.0f} tokens/s"
    yield _throughput(f"engine makes {figures.steady.offered_tokens_per_s or 0:.0f} tokens/s", figures.steady)
    yield f"{'one plain gRPC hop, both ends':<{NAME}}{hop.stream_messages_per_s:>10.0f}{hop.cpu_us_per_message:>14.1f}"
    yield ""
    yield "CPU us a token at the steady rate, by process"
    yield from _shares(figures.steady.cpu_us_per_token_by_service)
    yield "  outside that sum"
    yield from _shares(figures.steady.cpu_us_per_token_outside)
    yield ""
    yield f"first token, the gateway's own account, median ms (engine: {figures.ttft.script_ms:g} ms)"
    yield from _shares(figures.ttft.parts_ms)


def _ttft(name: str, cost: TtftCost, hop: HopCost) -> str:
    unary = hop.unary_ms_p50
    ratio = f"{cost.added_ms_p50 / unary:.1f} plain gRPC calls of {unary:.2f} ms"
    return f"{name:<{NAME}}{cost.added_ms_p50:>7.2f} ms{cost.added_ms_p99:>7.2f} ms   {ratio}"


def _throughput(name: str, found: Throughput) -> str:
    return (
        f"{'  ' + name:<{NAME}}{found.tokens_per_s:>10.0f}{found.cpu_us_per_token:>14.1f}{found.reads_per_token:>13.2f}"
    )


def _shares(values: Mapping[str, float]) -> Iterator[str]:
    for name, value in sorted(values.items(), key=lambda item: -item[1]):
        if value >= 0.005:
            yield f"    {name:<{NAME - 4}}{value:>10.2f}"
