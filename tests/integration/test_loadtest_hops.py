"""The bench's own processes, over real sockets: the load process and the one-hop yardstick."""

from __future__ import annotations

import json

import pytest

from loadtest.hops.job import Job
from loadtest.hops.processes import child, first_line, run_job
from loadtest.hops.reference import measure_hop


def test_the_load_process_reads_every_token_of_every_client_on_time():
    script = {"first_s": 0.05, "gap_s": 0.01, "tokens": 10, "end_s": 0.15}
    with child("loadtest.stub") as stub:
        job = Job(
            "127.0.0.1", int(first_line(stub)), "/v1/chat/completions", {}, [json.dumps({"stub": script})] * 16, 8
        )
        result = run_job(job)
    assert [sample.texts for sample in result.samples] == [10] * 16
    assert result.tokens == 160
    for sample in result.samples:
        assert sample.ttft_ms == pytest.approx(50, abs=25)


def test_a_refused_request_fails_the_job_with_the_servers_words():
    with child("loadtest.stub") as stub:
        job = Job("127.0.0.1", int(first_line(stub)), "/", {}, [json.dumps({"stub": {"ending": "refused"}})], 1)
        with pytest.raises(RuntimeError, match="queue_full"):
            run_job(job)


def test_the_yardstick_measures_one_hop():
    hop = measure_hop()
    assert 0 < hop.unary_ms_p50 <= hop.unary_ms_p99
    assert hop.stream_messages_per_s > 1000
    assert hop.cpu_us_per_message > 0
