"""What a decode worker does with a call: go on where a prefill worker stopped, or do all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import grpc
from prometheus_client import CollectorRegistry, Counter

from services.decode.fetcher import PageFetcher
from services.engine.generation import ChoiceOutput
from services.engine.sequence import finish_reason, most_output, stop_ids_of
from services.engine.worker.aggregated import aggregated, generating
from services.engine.worker.calls import CallStages, GenerateCall, Send, Update
from services.engine.worker.handoff import FirstToken, Handoff, refused
from services.engine.worker.parts import WorkerParts
from services.kvcache.names import PageName, PageNamer
from services.kvcache.page import Page
from services.kvcache.store import PageStore
from services.platform.failures import Failure


class DecodeRole:
    """A Role. Calls without a hand-off descriptor are served whole: the aggregated mode."""

    kv_role = "kv_consumer"
    kv_connector = "NixlConnector"

    def __init__(self, parts: WorkerParts, store: PageStore | None, registry: CollectorRegistry) -> None:
        self._parts = parts
        self._fetcher = PageFetcher(store, parts.layout, parts.settings.kv_wait_s, registry)
        self._refused = Counter(
            "tokenpath_kv_handoffs_refused", "Hand-offs by workers with another KV fingerprint", registry=registry
        )

    async def generate(self, call: GenerateCall, stages: CallStages, send: Send) -> None:
        if not call.transfer:
            await aggregated(self._parts.engine, call, stages, send)
            return
        handoff = Handoff.parse(call.transfer)
        self._check(handoff, call)
        # The first tokens go out before the pages come in: the client has waited for them already.
        firsts = {first.index: self._first_output(first, call) for first in handoff.first}
        await send([Update(output, handoff.cached_tokens) for output in firsts.values()])
        going_on = {index: output for index, output in firsts.items() if not output.finish}
        if going_on:
            pages = await self._fetch(handoff, call, stages)
            await self._continue(going_on, pages, handoff, call, stages, send)

    def _check(self, handoff: Handoff, call: GenerateCall) -> None:
        ours, prompt_tokens = self._parts.record.fingerprint, len(call.engine.prompt_ids)
        if handoff.fingerprint != ours:
            self._refused.inc()
            raise Failure(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the prefill worker's KV ({handoff.fingerprint}) is not this worker's ({ours}): "
                "model, weights, dtype, layout, block size, tokenizer and version must be the same on both",
                code="kv_fingerprint_mismatch",
                param="kv_transfer_params_json",
            )
        if handoff.request_id != call.engine.request_id:
            raise refused("it belongs to another request")
        if handoff.prompt_tokens != prompt_tokens:
            raise refused(f"it is for {handoff.prompt_tokens} prompt tokens, the request has {prompt_tokens}")
        if sorted(first.index for first in handoff.first) != list(call.engine.choices):
            raise refused("its first tokens are not those of the request's choices")
        if max(first.most_token_id for first in handoff.first) >= self._parts.model.vocab_size:
            raise refused("a first token is outside the vocabulary")

    def _first_output(self, first: FirstToken, call: GenerateCall) -> ChoiceOutput:
        sampling = call.engine.sampling
        finish = first.finish or finish_reason(
            first.sampled.token_id,
            1,
            sampling,
            stop_ids_of(sampling, self._parts.model.eos_token_ids),
            most_output(call.engine, self._parts.engine.settings.max_model_len),
        )
        return ChoiceOutput(first.index, (first.sampled,), finish)

    async def _fetch(self, handoff: Handoff, call: GenerateCall, stages: CallStages) -> dict[PageName, Page]:
        prompt_ids = call.engine.prompt_ids
        namer = PageNamer(handoff.fingerprint, call.engine.salt, self._parts.layout.block_size)
        names = namer.names(prompt_ids, include_partial=True)
        cached = self._parts.engine.events.leading(names)
        with stages.stage("kv_fetch") as stage:
            pages = await self._fetcher.fetch(names[: max(cached, handoff.pages)], len(prompt_ids), cached, stage)
            good = next((place for place in range(cached, len(names)) if names[place] not in pages), len(names))
            recompute = max(0, len(prompt_ids) - good * namer.block_size)
            stage.cached_tokens = min(cached * namer.block_size, len(prompt_ids))
            stage.note("recomputed_tokens", recompute)
        return pages

    async def _continue(
        self,
        firsts: Mapping[int, ChoiceOutput],
        pages: Mapping[PageName, Page],
        handoff: Handoff,
        call: GenerateCall,
        stages: CallStages,
        send: Send,
    ) -> None:
        request = replace(
            call.engine,
            choices=tuple(sorted(firsts)),
            known_ids={index: (output.tokens[0].token_id,) for index, output in firsts.items()},
            pages=pages,
        )
        with stages.stage("decode") as stage, generating(self._parts.engine, request, stage) as generation:
            while outputs := await generation.next():
                await send([Update(output, handoff.cached_tokens) for output in outputs])
