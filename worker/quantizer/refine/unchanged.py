"""Whether preparation has left alone what the model computes."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.errors import EngineError, UnsupportedModelError
from worker.quantizer.evaluation.metrics import Distances
from worker.quantizer.evaluation.side_by_side import side_by_side
from worker.quantizer.refine.case import Case
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session, is_large

# float32 rounding leaves 100 dB and more; a float16 model that is widened leaves about 60.
_PREPARED_SQNR_DB = 40.0


def check_prepared(prepared: ir.Model, case: Case, services: Services) -> None:
    """Preparation must not change what the model computes, unlike what its target asks for: compare one batch."""
    session = Session(prepared, threads=services.threads, what="prepared model", optimized=not is_large(prepared))
    for name, sqnr_db in _strays(session, case, services).items():
        if name in _strays(case.float_session, case, services):
            raise UnsupportedModelError(
                f"output {name!r} of the model is another each time that it runs on the same data ({sqnr_db:.1f} dB)",
                hint="Export the model for inference: without Dropout in training mode, and without random numbers.",
                output=name,
            )
        raise EngineError(
            f"preparation changed output {name!r} of the model ({sqnr_db:.1f} dB)",
            hint="Export the model with opset 17 or later, so that fewer preparation passes are needed.",
            output=name,
        )


def _strays(session: Session, case: Case, services: Services) -> dict[str, float]:
    """SQNR in dB, by name, of the outputs in which ``session`` differs from the float model on the first sample."""
    expected = case.expected_outputs(services.run, batch_size=1, last=1)
    distances = Distances()
    for twins in side_by_side(session, expected, services.run):
        distances.update(twins.pairs())
    figures = {name: distance.sqnr_db for name, distance in distances.of.items()}
    return {name: figure for name, figure in figures.items() if figure is not None and figure < _PREPARED_SQNR_DB}
