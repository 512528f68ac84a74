"""From a float model to its plan: all that is done before the first sample is looked at.

The prepared model goes on to compute what it did: a pass that changes that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from service.contracts.base import VERSION
from service.contracts.compatibility import check_batch, fixed_batch
from service.contracts.config import QuantizationConfig
from service.contracts.devices import DeviceField, device_fields
from service.contracts.errors import DeviceNotThereError, EngineError, ModelError
from service.contracts.graph_view import Inspection, NodeInspection
from service.contracts.model import ModelSummary
from service.contracts.preparation import fixed_inputs
from worker.quantizer.graph.metadata import fates, outline
from worker.quantizer.graph.serialized import copy_of
from worker.quantizer.graph.values import node_name
from worker.quantizer.intake.inspect import check_channels, open_model
from worker.quantizer.intake.work import work_of
from worker.quantizer.layerwise.frontier import free_memory_bytes
from worker.quantizer.modes.registry import MODES, lowest_opset, wanted_opset
from worker.quantizer.plan.candidates import ACTIVATIONS_IN_FLOAT
from worker.quantizer.plan.selection import Matcher, check_selectors
from worker.quantizer.plan.targets import edit_graph, edits_graph
from worker.quantizer.plan.types import Decision, PlanLog, QuantizationPlan
from worker.quantizer.preparation.passes.shapes import infer_shapes
from worker.quantizer.preparation.prepare import Prepared, prepare
from worker.quantizer.refine.draft import Case
from worker.quantizer.refine.strays import strays
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.providers import may_have_gpu, providers_of


@dataclass(frozen=True)
class Planned:
    """A plan without numbers, and how the network came to look as it does."""

    plan: QuantizationPlan  # for the prepared model as it is now
    plan_log: PlanLog  # what there is to tell of it
    edits: list[Decision]  # operators that the target has replaced
    unedited: ir.Model  # the prepared model as it was before, if the target replaces any


def prepare_model(
    model: ir.Model, config: QuantizationConfig, *, without: Collection[str] = ()
) -> tuple[Prepared, list[str]]:
    """Prepare ``model``, which is changed or replaced, and check it and the config's selectors against each other.

    Args:
        model: float model.
        config: of the job.
        without: passes to leave out.

    Returns:
        The prepared model, and notes on selectors that have no effect.

    Raises:
        AlreadyQuantizedError: the model holds quantized operators.
        InvalidConfigError: a selector names a node or an operator that is not there, or the preparation does not fit.
        UnsupportedModelError: the model cannot be prepared, or its channels do not fit.
    """
    uploaded = [(node.name, node.op_type) for node in model.graph.all_nodes()]
    before = outline(model.graph)
    in_subgraphs = config.subgraphs == "weights"
    prepared = prepare(
        model,
        config.preparation,
        opset=wanted_opset(config),
        lowest_opset=lowest_opset(config),
        subgraph_weights=in_subgraphs,
        without=without,
    )
    check_channels(prepared.graph)
    notes = check_selectors(
        config,
        [*uploaded, *prepared.op_types.items()],
        prepared.known_nodes(),
        Matcher(prepared.graph, prepared.op_types),
        fates(before, prepared.graph),
    )
    return prepared, notes


def plan_model(prepared: Prepared, config: QuantizationConfig) -> Planned:
    """Replace what the target replaces in ``prepared``, which is changed in place, and plan by the config's mode."""
    unedited = copy_of(prepared.model) if edits_graph(config) else prepared.model
    edits, plan_log = edit_graph(prepared, config), PlanLog()
    plan = MODES[config.mode].form.plan(prepared.graph, config, prepared.facts, plan_log)
    return Planned(plan, plan_log, edits, unedited)


Found = tuple[Prepared, list[str], Planned]


def kept_alike(found: Found, reloaded: Callable[[], ir.Model], case: Case, services: Services) -> Found:
    """What was prepared and planned, or that with the passes left out that changed what the model computes.

    Args:
        found: the prepared model, notes, and what was planned.
        reloaded: a copy of the float model as it was before it was prepared.
        case: with the float model and the data.
        services: of the run.

    Raises:
        UnsupportedModelError: the model gives other outputs each time that it runs.
        EngineError: whatever is left out, some output is another.
    """
    prepared, _, planned = found
    if planned.plan.is_empty or not prepared.keeps_function:
        return found
    changed = strays(planned.unedited, case, services)
    if not changed:
        return found
    name, how = next(iter(changed.items()))
    for without in _choices(prepared):
        services.run.check()
        try:
            again, notes = prepare_model(reloaded(), case.config, without=without)
            planned = plan_model(again, case.config)
            if strays(planned.unedited, case, services):
                continue
        except (EngineError, ModelError):
            continue  # this model needs the pass: the next choice has its turn, and the last one an error
        words = f"preparation leaves {', '.join(sorted(without))} out, which changed output {name!r} ({how})"
        services.run.log(words, "warning")
        return again, [*notes, words], planned
    raise EngineError(
        f"preparation changed output {name!r} of the model ({how})",
        hint="Export the model with opset 17 or later, so that fewer preparation passes are needed.",
        output=name,
    )


def _choices(prepared: Prepared) -> Iterator[frozenset[str]]:
    """Passes to leave out: each that did something, the last one first, then all of them."""
    applied = [step.name for step in prepared.steps if step.applied and step.name not in _NEEDED]
    yield from (frozenset({name}) for name in reversed(applied))
    if len(applied) > 1:
        yield frozenset(applied)


# Others rely on what these do.
_NEEDED = frozenset({"inline_functions", "name_everything", "fix_shapes", "nhwc_input"})
# Devices that a config names are looked for before anything is computed.
_CPU = "cpu"
_CONFIG = "/config"
_ONNXRUNTIME = "infer_device"
_LARGE_BATCH = 256  # a fixed batch axis from here on is checked before the model runs


def check_fixed_batch(summary: ModelSummary, original: ir.Model) -> None:
    """Refuse a batch axis that is fixed at more samples than memory takes, before the model runs.

    Raises:
        UnsupportedModelError: it is.
    """
    if fixed_batch(summary) >= _LARGE_BATCH:
        shaped = copy_of(original)
        infer_shapes(shaped)
        check_batch(summary, work_of(shaped.graph), most_bytes=free_memory_bytes())


def check_devices(config: QuantizationConfig) -> None:
    """Make sure that each GPU that the config asks for is there. Libraries are loaded only where one is.

    Raises:
        DeviceNotThereError: it is not; points to the field.
    """
    for field in device_fields(config):
        if not field.is_gpu:
            continue
        try:
            _device_of(field)
        except DeviceNotThereError as error:
            raise DeviceNotThereError(error.detail, hint=error.hint, pointer=_CONFIG + field.pointer) from None


def devices_of(config: QuantizationConfig) -> list[str]:
    """What each field of the config that names a device leads to on this host, in order.

    Raises:
        DeviceNotThereError: a GPU that a field asks for is not there.
    """
    return [_device_of(field) for field in device_fields(config)]


def _device_of(field: DeviceField) -> str:
    if field.pointer.endswith(_ONNXRUNTIME):
        return str(providers_of(field.value)[0])
    if field.value == _CPU or not (field.is_gpu or may_have_gpu()):
        return _CPU
    import torch

    from worker.quantizer.autodiff.program import choose_device  # loads torch

    device = choose_device(field.value)
    return _CPU if device.type == _CPU else f"{device} {torch.cuda.get_device_name(device)}"


# What a target would run on integers, told before anything is quantized and without data.

_QUANTIZED = {
    "static": "run quantized",
    "dynamic": "run quantized",
    "weights_only": "get quantized weights",
    "float16": "run in float16",
}


def inspect_file(path: Path, config: QuantizationConfig, *, threads: int) -> Inspection:
    """Say for every node of a model what ``config`` would make of it on its target.

    Args:
        path: the .onnx file; external data lies in its folder.
        config: resolved recipe; everything in it that needs data is passed over.
        threads: threads that the runtime may use.

    Raises:
        ModelError: the model cannot be used, or is quantized already.
        InvalidConfigError: the config names nodes, inputs or shapes that the model does not have.
    """
    uploaded = open_model(path)
    uploaded.judge(threads=threads)
    fixed_inputs(uploaded.summary.inputs, config.preparation)
    nodes, plan_log = inspect_nodes(uploaded.model, config)
    quantized = sum(node.quantized for node in nodes)
    stored = sum(node.activation_reason is not None for node in nodes)
    within = sum(node.activation_reason_code == ACTIVATIONS_IN_FLOAT.code for node in nodes)
    return Inspection(
        target=config.target,
        mode=config.mode,
        model_sha256=uploaded.summary.sha256,
        engine_version=VERSION,
        summary=f"{quantized - stored} of {len(nodes)} nodes {_QUANTIZED[config.mode]} on {config.target}"
        + (f", and {within} inside sub-graphs get quantized weights" if within else "")
        + (f", and {stored - within} recurrent layers get quantized weights." if stored > within else "."),
        node_count=len(nodes),
        quantized_count=quantized,
        nodes=nodes,
        notes=tuple(plan_log.notes),
    )


def inspect_nodes(model: ir.Model, config: QuantizationConfig) -> tuple[tuple[NodeInspection, ...], PlanLog]:
    """The nodes of the prepared model by the planner of the config's mode, and what there is to tell of its plan.

    Args:
        model: float model, changed or replaced.
        config: resolved recipe.

    Raises:
        AlreadyQuantizedError: the model holds quantized operators.
        InvalidConfigError: a selector names a node or an operator that is not there.
        UnsupportedModelError: the model cannot be prepared.
    """
    prepared, notes = prepare_model(model, config)
    planned = plan_model(prepared, config)
    replaced = {decision.where: f"{decision.what}: {decision.why}" for decision in planned.edits}
    return tuple(_nodes(prepared, planned.plan, replaced)), planned.plan_log.followed_by(*notes)


def _nodes(prepared: Prepared, plan: QuantizationPlan, replaced: dict[str, str]) -> Iterator[NodeInspection]:
    for node in prepared.graph.all_nodes():
        entry = plan.nodes[node_name(node)]
        reason, inner = entry.reason, entry.activation_reason
        yield NodeInspection(
            name=entry.name,
            op=prepared.op_types.get(entry.name, entry.op_type),
            quantized=entry.quantized,
            reason=reason.words if reason else replaced.get(entry.name),
            reason_code=reason.code if reason else None,
            activation_reason=inner.words if inner else None,
            activation_reason_code=inner.code if inner else None,
            hint=reason.hint if reason else None,
            by_design=reason is not None and reason.by_design,
        )
