"""What it costs that a target computes other functions than the float model, before anything is rounded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from service.contracts.costs import held_back_samples
from worker.quantizer.evaluation.decisions import deciding_outputs
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.draft import Case
from worker.quantizer.refine.judge import score_session
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session
from worker.quantizer.sanity.kind import declare, worst_first

_BATCH = 8
FUNCTIONS_REPLACED = declare(
    "functions-replaced",
    "info",
    "target {target} replaces {nodes} by another function; before any quantization the outputs have an SQNR of "
    "{sqnr} to those of the float model",
    hint="Nothing needs to be done; algorithms aim at the float model.",
)
FUNCTIONS_COST = declare(
    "functions-replaced-at-a-loss",
    "warning",
    "target {target} replaces {nodes} by another function, which loses accuracy before any quantization: {loss}",
    hint="Train the model with the function that the target has, or leave these nodes to the CPU by setting "
    "target_options.sigmoid_to_hard_sigmoid to false.",
)


def with_function_findings(case: Case, prepared: Prepared, services: Services) -> Case:
    """The case with a finding if the target has replaced functions: what that costs on calibration samples.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    replaced = Counter(found.op_type for found in prepared.facts.stand_ins.values())
    if not replaced:
        return case
    model, run = prepared.model, services.run
    with services.stages.stage("sanity"):
        session = Session(model, threads=services.threads, what="prepared model")
        samples = held_back_samples(case.calibration_samples)
        classes = deciding_outputs(model, case.config.evaluation, case.calibration.summary.labels)
        expected = case.expected_outputs(run, batch_size=_BATCH, samples=samples)
        found = score_session(session, expected, case.metrics, run, by_metric=False, classes=classes)
    nodes = ", ".join(f"{count} {op_type}" for op_type, count in replaced.items())
    sqnr_db = found.score.sqnr_db
    words = "no finite value" if sqnr_db is None else f"{sqnr_db:.1f} dB"
    kind = FUNCTIONS_REPLACED if found.loss is None else FUNCTIONS_COST
    finding = kind({"nodes": nodes}, target=case.config.target, nodes=nodes, sqnr=words, loss=found.loss)
    return replace(case, findings=worst_first([*case.findings, finding]))
