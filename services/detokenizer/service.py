"""Answers tokenpath.v1.Detokenizer: decode's stream of token ids becomes a stream of text."""

from __future__ import annotations

import logging
import time

import grpc
from opentelemetry.trace import SpanKind

from services.detokenizer.decode_call import DecodeCall
from services.detokenizer.metrics import DetokenizerMetrics
from services.detokenizer.outputs import Outputs
from services.detokenizer.settings import DetokenizerSettings
from services.detokenizer.stream_plan import StreamPlan, plan_stream
from services.platform.context import RequestContext
from services.platform.deadlines import remaining_s, within
from services.platform.failures import Failure, abort_with
from services.platform.server import Runtime
from services.platform.stage import Stage
from services.platform.stage_trailer import stages_trailer
from services.tokenization.tokenizer import Tokenizer
from tokenpath.v1.common_pb2 import StageReport
from tokenpath.v1.detokenizer_pb2 import StreamEnd, StreamRequest, StreamResponse
from tokenpath.v1.detokenizer_pb2_grpc import DetokenizerServicer

log = logging.getLogger(__name__)

ServicerContext = grpc.aio.ServicerContext[StreamRequest, StreamResponse]


class DetokenizerService(DetokenizerServicer):
    def __init__(self, runtime: Runtime[DetokenizerSettings], tokenizer: Tokenizer) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._tokenizer = tokenizer
        self._metrics = DetokenizerMetrics(runtime.registry)

    async def Stream(self, request: StreamRequest, context: ServicerContext) -> None:  # type: ignore[override]
        # Writes instead of yielding: a generator suspended at a yield would learn of a cancelled call only when it is
        # collected, but decode has to stop at once.
        stage = self._runtime.telemetry.stage(
            "detokenize",
            parent=RequestContext.from_grpc(context).trace,
            kind=SpanKind.SERVER,
            rpc="tokenpath.v1.Detokenizer/Stream",
        )
        decode_reports: list[StageReport] = []
        status = "CANCELLED"
        with stage, self._metrics.active.track_inprogress():
            try:
                await self._stream(request, context, stage, decode_reports)
                status = "OK"
            except Failure as failure:
                status = failure.status.name
                stage.end(failure)
                await abort_with(context, failure, stages_trailer([*decode_reports, stage.report()]))
            except Exception:
                status = "INTERNAL"
                raise
            finally:
                self._metrics.streams.labels(status).inc()

    async def _stream(
        self, request: StreamRequest, context: ServicerContext, stage: Stage, decode_reports: list[StageReport]
    ) -> None:
        """`decode_reports` receives the decode worker's own reports, however the stream ends."""
        plan = plan_stream(request, self._tokenizer)
        hop = RequestContext(request.request_id, request.attempt or 1, request.cache_salt, stage.context)
        timeout_s = within(remaining_s(context), self._settings.longest_stream_s)
        channel = self._runtime.channels.get(request.decode_address)
        call = DecodeCall(channel, request.engine_request, hop, timeout_s)
        outputs = Outputs(self._tokenizer, plan.rules, plan.choices)
        try:
            await self._relay(call, outputs, plan, context, stage)
            await call.read_to_end(self._settings.report_wait_s)
        finally:
            call.cancel()
            decode_reports += call.stage_reports
            stage.tokens = outputs.tokens
            self._metrics.tokens.inc(outputs.tokens)
        if not decode_reports:
            self._metrics.missing_reports.inc()
        end = StreamEnd(usage=outputs.usage(), reports=[*decode_reports, stage.report()])
        await context.write(StreamResponse(end=end))

    async def _relay(
        self, call: DecodeCall, outputs: Outputs, plan: StreamPlan, context: ServicerContext, stage: Stage
    ) -> None:
        """Pass on what decode says, a message for a message, until every choice has finished."""
        clock = time.perf_counter_ns
        waited_ns = text_ns = sent_ns = 0
        started = before = clock()
        first = True
        try:
            while not outputs.finished:
                message = await call.read()
                received = clock()
                waited_ns += received - before
                if message is None:
                    raise Failure(
                        grpc.StatusCode.INTERNAL, "the decode worker ended its stream before the output was complete"
                    )
                deltas, stopped = outputs.take(message)
                before = clock()
                text_ns += before - received
                if deltas:
                    await context.write(StreamResponse(deltas=deltas))
                    sent = clock()
                    sent_ns += sent - before
                    before = sent
                    if first:
                        first = False
                        stage.event("first_token")
                        stage.note("first_token_in_ms", round((received - started) / 1e6, 3))
                        stage.note("first_text_out_ms", round((sent - started) / 1e6, 3))
                if stopped is not None:
                    self._stop(call, plan.sequence_id(stopped))
        finally:
            stage.add_part("wait_decode", waited_ns)
            stage.add_part("text", text_ns)
            stage.add_part("send", sent_ns)

    def _stop(self, call: DecodeCall, sequence_id: str) -> None:
        # Not awaited: other choices must not wait for it.
        self._metrics.stop_strings.inc()
        self._runtime.tasks.spawn(self._abort(call, sequence_id), name=f"abort {sequence_id}")

    async def _abort(self, call: DecodeCall, sequence_id: str) -> None:
        try:
            await call.abort(sequence_id)
        except Failure as failure:
            self._metrics.failed_aborts.inc()
            log.warning("decode was not told that %s is done: %s", sequence_id, failure)
