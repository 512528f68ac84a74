"""What the stages of a run should cost, by a forward pass that is measured on the run's own machine with its own data.

A stage that tells how far it has come corrects what is wrong with that soon.
"""

from __future__ import annotations

import sys
import time

import onnx_ir as ir

from service.contracts.costs import TORCH_SECONDS, CostFacts, stage_costs
from worker.quantizer.data.dataset import choose_batch_size
from worker.quantizer.intake.work import matrix_kinds
from worker.quantizer.refine.draft import Case
from worker.quantizer.run.interface import Run
from worker.quantizer.run.progress import Phase

_MEASURED_BATCH, _FEWEST_RUNS, _MOST_RUNS, _MEASURED_SECONDS = 8, 2, 4, 0.25


def forward_seconds(case: Case, run: Run) -> float:
    """Seconds that the float model takes for a sample, of a batch where it takes batches; the fastest run counts.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    data = case.measured_on
    size = choose_batch_size(case.inputs, data, _MEASURED_BATCH)
    batch = next(iter(data.batches(case.inputs, size, samples=range(size))))
    taken: list[float] = []
    while len(taken) < _FEWEST_RUNS or (len(taken) < _MOST_RUNS and sum(taken) < _MEASURED_SECONDS):
        run.check()
        begin = time.perf_counter()
        case.float_session.run(batch.feeds, numbers=batch.numbers)
        taken.append(time.perf_counter() - begin)
    return min(taken) / max(batch.valid, 1)


def expected_phases(case: Case, *, graph: ir.Graph, sample_seconds: float) -> list[Phase]:
    """What comes behind loading, in order.

    Args:
        case: what is quantized.
        graph: as it was uploaded.
        sample_seconds: of ``forward_seconds``.
    """
    facts = CostFacts(
        nodes=graph.num_nodes(),
        matrices=matrix_kinds(graph),
        sample_seconds=sample_seconds,
        calibration_samples=case.calibration_samples,
        measured_samples=case.measured_on.samples,
        torch_seconds=0.0 if "torch" in sys.modules else TORCH_SECONDS,
    )
    return [Phase(name, seconds) for name, seconds in stage_costs(case.config, facts)]
