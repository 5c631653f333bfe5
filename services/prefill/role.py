"""What a prefill worker does with a call: compute the prompt, publish its pages, hand over."""

from __future__ import annotations

import time
from dataclasses import replace

from prometheus_client import CollectorRegistry

from services.engine.generation import ChoiceOutput
from services.engine.sequence import EngineRequest
from services.engine.worker.aggregated import aggregated, generating
from services.engine.worker.calls import CallStages, GenerateCall, Send, Update
from services.engine.worker.handoff import FirstToken, Handoff
from services.engine.worker.parts import WorkerParts
from services.engine.worker.validation import invalid
from services.kvcache.store import PageStore
from services.prefill.publisher import Publisher, PublishMetrics


class PrefillRole:
    """A Role. Calls without `do_remote_decode` are served whole, as a decode worker would."""

    kv_role = "kv_producer"
    kv_connector = "NixlConnector"  # makes smg send do_remote_decode; what it relays is ours all the same

    def __init__(self, parts: WorkerParts, store: PageStore | None, registry: CollectorRegistry) -> None:
        self._parts = parts
        self._store = store
        self._metrics = PublishMetrics(registry)

    async def generate(self, call: GenerateCall, stages: CallStages, send: Send) -> None:
        if not call.transfer:
            await aggregated(self._parts.engine, call, stages, send)
        elif call.transfer.get("do_remote_decode") is True:
            await self._hand_over(call, stages, send)
        else:
            raise invalid("kv_transfer_params_json", "must have do_remote_decode: true on a prefill worker")

    async def _hand_over(self, call: GenerateCall, stages: CallStages, send: Send) -> None:
        settings = self._parts.settings
        async with Publisher(self._store, settings.kv_ttl_s, self._metrics) as publisher:
            request = replace(call.engine, sampling=replace(call.engine.sampling, max_tokens=1), on_page=publisher.add)
            outputs, cached_tokens = await self._compute(request, stages)
            with stages.stage("kv_publish") as stage:
                stored = await publisher.finish(settings.kv_wait_s)
                stage.bytes = publisher.bytes
                stage.tokens = len(request.prompt_ids) if stored else 0
                stage.note("pages", publisher.pages)
                if not stored:
                    stage.event("kv_not_published")
            pages = publisher.pages if stored else 0
        descriptor = self._descriptor(call, outputs, pages, cached_tokens)
        await send([Update(output, cached_tokens, descriptor) for output in outputs])

    async def _compute(self, request: EngineRequest, stages: CallStages) -> tuple[list[ChoiceOutput], int]:
        """The prompt and each choice's first token, in order of the choices; and the cached prompt tokens."""
        outputs: list[ChoiceOutput] = []
        with stages.stage("prefill") as stage:
            with generating(self._parts.engine, request, stage) as generation:
                while ready := await generation.next():
                    outputs += ready
            stage.tokens = len(request.prompt_ids) - generation.cached_tokens
        return sorted(outputs, key=lambda output: output.index), generation.cached_tokens

    def _descriptor(
        self, call: GenerateCall, outputs: list[ChoiceOutput], pages: int, cached_tokens: int
    ) -> str | None:
        """None when a choice was aborted: there is nothing to go on with."""
        if not all(output.tokens for output in outputs):
            return None
        return Handoff(
            fingerprint=self._parts.record.fingerprint,
            generation=self._parts.record.generation,
            prompt_tokens=len(call.engine.prompt_ids),
            pages=pages,
            cached_tokens=cached_tokens,
            # Callers ask for one token here, so only a stop is an end; how many they want in all the decode call says.
            first=tuple(
                FirstToken(output.index, output.tokens[0], "stop" if output.finish == "stop" else "")
                for output in outputs
            ),
            request_id=call.engine.request_id,
            attempt=call.context.attempt,
            expires_unix_ms=int((time.time() + self._parts.settings.kv_ttl_s) * 1000),
        ).to_json()
