"""What the runtime's kernels say of latency: whether the target is simulated here; both forms of block-wise products.

Only mode weights_only writes such products, for onnxruntime alone, whose operator the second form is.
"""

from __future__ import annotations

from typing import Literal

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.reason import Reason, declare
from service.contracts.report import KernelFigures, Kernels, LatencyFigures
from service.contracts.specs import has_integer_kernels
from worker.quantizer.emit import emit
from worker.quantizer.emit.contrib import has_kernel
from worker.quantizer.evaluation.compare import worst_distance_db
from worker.quantizer.evaluation.latency import measure_latency
from worker.quantizer.graph import sizes
from worker.quantizer.graph.serialized import copy_of, to_bytes
from worker.quantizer.graph.values import input_of, name_of
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Case, QuantizedDraft
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session, is_large

TOO_LARGE = declare(
    "too-large-for-both-forms", "the model is too large to be written and run in a second form", by_design=True
)
Form = Literal["standard", "matmul_nbits"]
THIS_CPU = "onnxruntime_cpu"
_RUNTIMES = {
    "onnxruntime_gpu": "onnxruntime on a GPU",
    "tensorrt": "TensorRT",
    "qnn": "QNN on the Hexagon HTP",
    "openvino": "OpenVINO",
    "amd_npu_cnn": "an AMD NPU",
    "amd_npu_transformer": "an AMD NPU",
}


def not_representative(config: QuantizationConfig) -> str | None:
    """Why latency that is measured here does not predict that of the target; None: it does.

    Mode weights_only has no entry: its kernels are those of the target.
    """
    if config.target != THIS_CPU:
        return f"Simulated with onnxruntime on this CPU; the target is {_RUNTIMES[config.target]}"
    if config.mode == "float16":
        return "Simulated: onnxruntime has no float16 kernels for most operators on this CPU and computes in float32"
    types = {"static": (config.weight.dtype, config.activation.dtype), "dynamic": (config.weight.dtype,)}
    missing = [dtype for dtype in dict.fromkeys(types.get(config.mode, ())) if not has_integer_kernels(dtype)]
    if missing:
        return f"Simulated: onnxruntime has no {' and '.join(missing)} kernels on this CPU and computes in float32"
    return None


def kernel_figures(
    done: QuantizedDraft, session: Session, latency: LatencyFigures, case: Case, services: Services
) -> Kernels | None:
    """Both forms of a model's products beside the float model; None where no product has two.

    Args:
        done: the model.
        session: of it, as emitted.
        latency: of it beside the float model.
        case: what was quantized.
        services: of the run.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    plan, products = done.plan, _products(done.filled.draft.graph, done.plan)
    if case.config.mode != "weights_only" or not products:
        return None
    why_not = _why_not(done, case)
    if why_not is not None:
        return Kernels(products=len(products), reason=why_not.words, reason_code=why_not.code)
    names = {name_of(node.inputs[1]) for node in products if node.inputs[1] is not None}
    levels = {plan.weights[name].spec.accuracy_level for name in names}
    written: Form = (
        "matmul_nbits" if all(plan.weights[name].spec.kernel == "matmul_nbits" for name in names) else "standard"
    )
    other: Form = "standard" if written == "matmul_nbits" else "matmul_nbits"
    twin = Session(_rewritten(done, names, other), threads=services.threads, what="quantized model in its other form")
    timed = measure_latency(
        case.reference,
        twin,
        runs=case.config.evaluation.latency_runs,
        threads=services.threads,
        run=services.run,
    )
    level = max(levels)
    forms = (
        _figures(written, level, session, latency, case, services, emitted=True),
        _figures(other, level, twin, timed, case, services, emitted=False),
    )
    return Kernels(products=len(products), forms=tuple(sorted(forms, key=lambda form: form.form == "matmul_nbits")))


def _why_not(done: QuantizedDraft, case: Case) -> Reason | None:
    size_bytes = max(done.content.size_bytes, case.summary.size_bytes)
    large = is_large(done.emitted.model) or size_bytes > sizes.PACKED_BYTES
    return TOO_LARGE() if large else None


def _products(graph: ir.Graph, plan: QuantizationPlan) -> list[ir.Node]:
    """Nodes whose weights the operator takes."""
    found = []
    for node in graph:
        weight = input_of(node, 1)
        planned = None if weight is None else plan.weights.get(weight.name or "")
        if planned is not None and plan.role_of(node) is not None and has_kernel(node, planned):
            found.append(node)
    return found


def _rewritten(done: QuantizedDraft, names: set[str], form: Form) -> bytes:
    """The model with these weights in the given form."""
    draft, plan = done.filled.draft, done.plan.copy()
    for name in names:
        plan.weights[name].spec = plan.weights[name].spec.model_copy(update={"kernel": form})
    return to_bytes(emit(copy_of(draft.prepared.model), plan).model)


def _figures(
    form: Form,
    level: int,
    session: Session,
    latency: LatencyFigures,
    case: Case,
    services: Services,
    *,
    emitted: bool,
) -> KernelFigures:
    last = min(case.config.evaluation.layer_samples, case.measured_on.samples)
    worst = worst_distance_db(case.reference, session, limit=last, run=services.run)
    return KernelFigures(
        form=form,
        emitted=emitted,
        accuracy_level=level if form == "matmul_nbits" else None,
        float_ms=latency.float_ms,
        latency_ms=latency.quantized_ms,
        ratio=latency.ratio,
        ratio_interval=latency.ratio_interval,
        sqnr_db=None if worst is None else round(worst, 3),
        samples=last,
    )
