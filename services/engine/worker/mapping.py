"""`vllm.grpc.engine` messages <-> the worker's own types. The only file that knows both."""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from services.engine.kv_changes import KvChange, PageRemoved, PageStored
from services.engine.kv_events import KvBatch
from services.engine.outcome import Load, Step
from services.engine.runner import Sampled
from services.engine.sampling_params import SamplingParams
from services.engine.sequence import EngineRequest
from services.engine.steps import StepRecord
from services.engine.worker.calls import GenerateCall, Update
from services.engine.worker.validation import check_choices, check_prompt, check_sampling, invalid
from services.kvcache.names import block_hash
from services.platform.context import RequestContext
from services.platform.ids import new_request_id
from tokenpath.v1 import worker_pb2

MAX_ID_CHARACTERS = 256
REFUSED_REQUEST_FIELDS = ("kv_transfer_params", "mm_inputs", "media_refs")
REFUSED_SAMPLING_FIELDS = ("prompt_logprobs", "truncate_prompt_tokens")


def generate_call(
    message: vllm_engine_pb2.GenerateRequest,
    context: RequestContext,
    vocab_size: int,
    tokenise: Callable[[str], Sequence[int]],
) -> GenerateCall:
    """Raises Failure (INVALID_ARGUMENT) naming the field that is wrong or can't be honoured.

    Stop strings and how special tokens are shown are the business of whoever turns tokens into text.
    """
    _refuse_unsupported(message)
    if len(message.request_id) > MAX_ID_CHARACTERS:
        raise invalid("request_id", f"must have at most {MAX_ID_CHARACTERS} characters")
    if message.WhichOneof("input") == "text":
        prompt_ids = tuple(tokenise(message.text))
    else:
        prompt_ids = tuple(message.tokenized.input_ids)
    check_prompt(prompt_ids, vocab_size)
    sampling = _sampling(message.sampling_params)
    check_sampling(sampling, vocab_size)
    request = EngineRequest(
        request_id=message.request_id or context.request_id or new_request_id(),
        prompt_ids=prompt_ids,
        sampling=sampling,
        choices=tuple(range(check_choices(message.sampling_params.n))),
        salt=context.cache_salt,
    )
    return GenerateCall(request, context, message.stream, _transfer(message.kv_transfer_params_json))


def _refuse_unsupported(message: vllm_engine_pb2.GenerateRequest) -> None:
    sampling = message.sampling_params
    refused = [name for name in REFUSED_REQUEST_FIELDS if message.HasField(name)]
    refused += ["extra_mm_inputs"] if message.extra_mm_inputs else []
    refused += ["data_parallel_rank"] if message.data_parallel_rank > 0 else []
    refused += [name for name in REFUSED_SAMPLING_FIELDS if sampling.HasField(name)]
    refused += [constraint] if (constraint := sampling.WhichOneof("constraint")) else []
    if refused:
        raise invalid(refused[0], "is not supported by this worker; leave it out")


def _sampling(message: vllm_engine_pb2.SamplingParams) -> SamplingParams:
    """A number that is 0 because nobody set it means the default, where 0 itself would make no sense."""
    return SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_p=message.top_p or 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty or 1.0,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        logit_bias=dict(message.logit_bias),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        seed=message.seed if message.HasField("seed") else secrets.randbits(31),
    )


def _transfer(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise invalid("kv_transfer_params_json", f"is not JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError):
        raise invalid("kv_transfer_params_json", "has a number that is too long, or is nested too deeply") from None
    if not isinstance(fields, dict):
        raise invalid("kv_transfer_params_json", "must be a JSON object")
    return fields


def chunk(update: Update, prompt_tokens: int, completion_tokens: int) -> vllm_engine_pb2.GenerateResponse:
    """New tokens of a choice; `completion_tokens` counts them in."""
    tokens = update.output.tokens
    return vllm_engine_pb2.GenerateResponse(
        chunk=vllm_engine_pb2.GenerateStreamChunk(
            token_ids=[sampled.token_id for sampled in tokens],
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=update.cached_tokens,
            output_logprobs=_logprobs(tokens),
            index=update.output.index,
        )
    )


def complete(update: Update, prompt_tokens: int, tokens: Sequence[Sampled]) -> vllm_engine_pb2.GenerateResponse:
    """The end of a choice, with all its tokens."""
    stopped_by = tokens[-1].token_id if tokens and update.output.finish == "stop" else None
    return vllm_engine_pb2.GenerateResponse(
        complete=vllm_engine_pb2.GenerateComplete(
            output_ids=[sampled.token_id for sampled in tokens],
            finish_reason=update.output.finish,
            prompt_tokens=prompt_tokens,
            completion_tokens=len(tokens),
            cached_tokens=update.cached_tokens,
            output_logprobs=_logprobs(tokens),
            index=update.output.index,
            matched_token_id=stopped_by,
            kv_transfer_params_json=update.transfer,
        )
    )


def _logprobs(tokens: Sequence[Sampled]) -> vllm_engine_pb2.OutputLogProbs | None:
    if not tokens or tokens[0].logprob is None:
        return None
    return vllm_engine_pb2.OutputLogProbs(
        token_logprobs=[sampled.logprob or 0.0 for sampled in tokens],
        token_ids=[sampled.token_id for sampled in tokens],
        top_logprobs=[
            vllm_engine_pb2.TopLogProbs(
                values=[logprob for _, logprob in sampled.top], token_ids=[token_id for token_id, _ in sampled.top]
            )
            for sampled in tokens
        ],
    )


def kv_event_batch(batch: KvBatch, load: common_pb2.EngineLoad) -> common_pb2.KvEventBatch:
    message = common_pb2.KvEventBatch(
        sequence_number=batch.sequence,
        timestamp=batch.unix_s,
        events=[_kv_event(change, batch) for change in batch.changes],
        load=load,
    )
    if batch.snapshot:
        pages = len(batch.changes) - 1
        message.snapshot.CopyFrom(common_pb2.KvSnapshotChunk(index=0, count=1, blocks=pages))
    return message


def _kv_event(change: KvChange, batch: KvBatch) -> common_pb2.KvCacheEvent:
    event_id = 0 if batch.snapshot else batch.sequence
    if isinstance(change, PageStored):
        stored = common_pb2.KvBlocksStored(
            blocks=[
                common_pb2.KvBlock(
                    block_hash=block_hash(change.name), token_ids=change.token_ids, block_size=len(change.token_ids)
                )
            ],
            parent_block_hash=None if change.parent is None else block_hash(change.parent),
            cache_salt=change.salt or None,
            tier=common_pb2.KV_CACHE_TIER_DEVICE,
            locality=common_pb2.KV_CACHE_LOCALITY_LOCAL,
        )
        return common_pb2.KvCacheEvent(event_id=event_id, stored=stored)
    if isinstance(change, PageRemoved):
        removed = common_pb2.KvBlocksRemoved(block_hashes=[block_hash(change.name)])
        return common_pb2.KvCacheEvent(event_id=event_id, removed=removed)
    return common_pb2.KvCacheEvent(event_id=event_id, cleared=common_pb2.KvCacheCleared())


def engine_load(
    load: Load,
    *,
    block_size: int,
    max_num_seqs: int,
    tokens_per_s: float,
    hit_rate: float,
    load_only: bool,
    sample: int,
    silence_s: float | None,
) -> common_pb2.EngineLoad:
    usage = load.usage
    return common_pb2.EngineLoad(
        running_requests=load.running,
        waiting_requests=load.waiting,
        waiting_uncached_tokens=load.waiting_tokens,
        token_usage=_share(usage.used, usage.total),
        active_token_usage=_share(usage.used, usage.total),
        gen_throughput=tokens_per_s,
        max_running_requests=max_num_seqs,
        sample=sample,
        load_only=load_only,
        cache_hit_rate=hit_rate,
        num_used_tokens=usage.used * block_size,
        max_total_num_tokens=usage.total * block_size,
        engine_silence_ms=None if silence_s is None else int(silence_s * 1000),
        engine_reports_steps=True,
        prefill_pending_tokens=load.waiting_tokens,
    )


def loads_response(load: common_pb2.EngineLoad, version: str) -> vllm_engine_pb2.GetLoadsResponse:
    return vllm_engine_pb2.GetLoadsResponse(
        timestamp=datetime.datetime.now(datetime.UTC).isoformat(),
        version=version,
        dp_rank_count=1,
        loads=[
            vllm_engine_pb2.SchedulerLoad(
                num_running_reqs=load.running_requests,
                num_waiting_reqs=load.waiting_requests,
                num_total_reqs=load.running_requests + load.waiting_requests,
                num_used_tokens=load.num_used_tokens,
                max_total_num_tokens=load.max_total_num_tokens,
                token_usage=load.token_usage,
                gen_throughput=load.gen_throughput,
                cache_hit_rate=load.cache_hit_rate,
                utilization=_share(load.running_requests, load.max_running_requests),
                max_running_requests=load.max_running_requests,
                num_waiting_uncached_tokens=load.waiting_uncached_tokens,
            )
        ],
    )


def load_state(load: Load) -> worker_pb2.LoadState:
    return worker_pb2.LoadState(
        running=load.running,
        waiting=load.waiting,
        waiting_tokens=load.waiting_tokens,
        kv_blocks_used=load.usage.used,
        kv_blocks_cached=load.usage.cached,
        kv_blocks_total=load.usage.total,
        arrivals=load.arrivals,
    )


def step_reports(generation: str, records: Sequence[StepRecord], load: Load) -> worker_pb2.StepReports:
    """What happened since the last message; `load` is the present one."""
    steps = [_step_report(record.step, record.load) for record in records if record.step is not None]
    return worker_pb2.StepReports(generation=generation, steps=steps, load=load_state(load))


def _step_report(step: Step, load: Load) -> worker_pb2.StepReport:
    return worker_pb2.StepReport(
        step=step.number,
        duration_ns=step.duration_ns,
        prefill_tokens=step.prefill_tokens,
        decode_tokens=step.decode_tokens,
        load=load_state(load),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
