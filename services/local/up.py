"""`tokenpath up`: from nothing to a first answer, or back to nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace

from services.local import records
from services.local.api_key import working_key
from services.local.config import PREFIX, StackConfig
from services.local.errors import StackError
from services.local.folder import StackFolder
from services.local.gateway_client import GatewayClient, Question
from services.local.lock import stack_lock
from services.local.plan import GATEWAY, StackPlan, Tier, make_plan, port_names
from services.local.ports import gateway_port, internal_ports
from services.local.probes import answers
from services.local.records import StackRecord
from services.local.supervisor import Report, Supervisor, stop
from services.tokenization.errors import ModelFilesError
from services.tokenization.source import resolve_model

STORES_S = 20.0
BUSY_S = 5.0  # a service under load may miss a probe or two
SERVICES_S = 180.0  # the first start of a Hugging Face model may convert its weights
FIRST_QUESTION = Question("Say hello.", max_tokens=8, temperature=0.0)


def bring_up(
    folder: StackFolder, config: StackConfig, environment: Mapping[str, str], report: Report
) -> tuple[StackRecord, bool]:
    """Start the folder's stack unless it runs, and ask it one question.

    Returns its record, and whether this call started it. Raises StackError when it does not come up; then nothing
    of it is left running. The same holds for an interrupt.
    """
    with stack_lock(folder.lock):
        found = records.load(folder.record)
        if found is not None:
            problem = _problem(found)
            if not problem:
                if found.config != asdict(config):
                    report("it runs with other settings than the ones given now; `make down` first to change them")
                return found, False
            report(f"the stack that this folder's last start left is not whole ({problem}): ending it first")
            stop(found.processes, report)
        return _start(folder, config, environment, report), True


def _problem(record: StackRecord) -> str:
    """What keeps a recorded stack from being one that serves; empty when it does."""
    if not record.ready:
        return "it was only half started"
    for process in record.processes:
        deadline = time.monotonic() + BUSY_S
        while process.alive and not answers(process.probe):
            if time.monotonic() > deadline:
                return f"{process.name} runs but does not serve"
            time.sleep(0.1)
        if not process.alive:
            return f"{process.name} has ended"
    return ""


def _start(folder: StackFolder, config: StackConfig, environment: Mapping[str, str], report: Report) -> StackRecord:
    _check_model(config)
    with gateway_port(config.gateway_port) as (port, moved):
        if moved:
            report(moved)
        ports = {**internal_ports(port_names(config), folder.path), GATEWAY: port}
        return _run(make_plan(config, ports, folder, environment), folder, config, environment, report)


def _check_model(config: StackConfig) -> None:
    """Say before anything starts that there is no such model; one that must be downloaded is downloaded once, here."""
    try:
        resolve_model(config.model, weights=config.engine == "torch")
    except ModelFilesError as error:
        raise StackError(f"{PREFIX}MODEL: {error}") from error


def _run(
    plan: StackPlan, folder: StackFolder, config: StackConfig, environment: Mapping[str, str], report: Report
) -> StackRecord:
    _set_old_logs_aside(folder)
    supervisor = Supervisor(folder, StackRecord(plan.urls, asdict(config)), environment)
    try:
        for tiers, timeout_s in (((Tier.STORES,), STORES_S), ((Tier.SERVICES, Tier.GATEWAY), SERVICES_S)):
            starting = [process for process in plan.processes if process.tier in tiers]
            for process in starting:
                supervisor.start(process)
            supervisor.wait_until_serving(starting, timeout_s, report)
        key = working_key(folder, plan.urls, environment)
        report(f"first answer after {_first_answer_s(plan.urls['gateway'], key):.2f} s")
        supervisor.save(replace(supervisor.record, api_key=key, ready=True))
    except BaseException:
        report("ending what was started")
        stop(supervisor.record.processes, report)
        folder.record.unlink(missing_ok=True)
        raise
    return supervisor.record


def _set_old_logs_aside(folder: StackFolder) -> None:
    """Keep the logs of the start before this one: they may say why it is no more."""
    logs = folder.log(GATEWAY).parent
    if logs.is_dir():
        previous = logs.with_name("logs.previous")
        previous.mkdir(exist_ok=True)
        for log in logs.iterdir():
            log.replace(previous / log.name)


def _first_answer_s(url: str, api_key: str) -> float:
    began = time.monotonic()
    with GatewayClient(url, api_key) as gateway, gateway.ask(FIRST_QUESTION) as answer:
        if not "".join(answer.texts()):
            raise StackError(f"the first question got an empty answer (request {answer.request_id})")
    return time.monotonic() - began
