"""From the engine's timing of a request to its stage: parts for the journey, `gen_ai.latency.*` for the span."""

from __future__ import annotations

from services.engine.generation import Generation
from services.platform.stage import Stage


def account(stage: Stage, generation: Generation) -> None:
    """Write what the engine measured into `stage`. Of several choices the one that took longest speaks for all."""
    stage.cached_tokens = generation.cached_tokens
    stage.tokens = sum(timing.tokens for timing in generation.timings.values())
    if not generation.timings:
        return
    timing = max(generation.timings.values(), key=lambda timing: timing.total_ns)
    stage.add_part("queue", timing.queue_ns)
    stage.add_part("prefill_compute", timing.prefill_ns)
    stage.add_part("decode_compute", timing.decode_ns)
    stage.add_part("wait", timing.wait_ns)
    stage.note("steps", timing.steps)
    stage.note("batch_min", timing.batch_min)
    stage.note("batch_mean", round(timing.batch_mean, 2))
    stage.note("batch_max", timing.batch_max)
    stage.note("first_token_ms", round(timing.first_token_ns / 1e6, 3))
    stage.note("itl_mean_ms", round(timing.itl_mean_ns / 1e6, 3))
    stage.note("itl_max_ms", round(timing.itl_max_ns / 1e6, 3))
    if timing.preemptions:
        stage.note("preemptions", timing.preemptions)
    stage.set("gen_ai.latency.time_in_queue", timing.queue_ns / 1e9)
    stage.set("gen_ai.latency.time_to_first_token", timing.first_token_ns / 1e9)
    stage.set("gen_ai.latency.e2e", timing.total_ns / 1e9)
    stage.set("gen_ai.latency.time_in_model_prefill", timing.prefill_ns / 1e9)
    stage.set("gen_ai.latency.time_in_model_decode", timing.decode_ns / 1e9)
    stage.set("gen_ai.latency.time_in_model_inference", (timing.prefill_ns + timing.decode_ns) / 1e9)
