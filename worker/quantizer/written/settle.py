"""Writes a model such that onnxruntime computes what it says, with its optimizations and without.

The written model is run both ways on a few samples, in a process that may die. Where they are apart the tensor is found
at which that begins, by bisection, and its node is written otherwise: kept from the runtime's integer kernel, or left
in float. What helps neither way is told, and no gate is passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from service.contracts.costs import spread
from service.contracts.errors import EngineError
from service.contracts.reason import declare
from worker.quantizer.fallback.regions import without
from worker.quantizer.graph.serialized import serialized
from worker.quantizer.graph.values import is_float32, name_of, node_name
from worker.quantizer.plan.types import Role
from worker.quantizer.preparation.layout import TO_NHWC
from worker.quantizer.refine.draft import STATIC, Differs, Draft, Filled, QuantizedDraft
from worker.quantizer.runtime.faults import cleaned
from worker.quantizer.runtime.host import may_saturate
from worker.quantizer.sanity.decisions import RUNTIME_DIFFERS
from worker.quantizer.search.trials import ModelBuilder
from worker.quantizer.written.child import Arrays, ChildOutcome, both_ways
from worker.quantizer.written.compare import Apart, no_longer_finite, outputs_apart, tensor_apart

# The part of a model that makes one of its tensors.


def up_to(model: onnx.ModelProto, tensor: str) -> bytes:
    """The model with ``tensor`` as its only output, serialized: the nodes that it is made of, and no others.

    Args:
        model: whole.
        tensor: of the main graph.
    """
    makers = {name: k for k, node in enumerate(model.graph.node) for name in node.output if name}
    wanted, ahead = set(), [tensor]
    while ahead:
        k = makers.get(ahead.pop())
        if k is not None and k not in wanted:
            wanted.add(k)
            ahead.extend(_read(model.graph.node[k]))
    read = {name for k in wanted for name in _read(model.graph.node[k])} | {tensor}
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = part.graph
    graph.name = model.graph.name or "part"
    graph.node.extend(node for k, node in enumerate(model.graph.node) if k in wanted)
    graph.initializer.extend(held for held in model.graph.initializer if held.name in read)
    graph.input.extend(model.graph.input)
    graph.value_info.extend(known for known in model.graph.value_info if known.name in read)
    graph.output.append(onnx.ValueInfoProto(name=tensor))
    return serialized(part)


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, in its sub-graphs too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read(inner)
            yield from (value.name for value in graph.output)


_SAMPLES = 4
_ROUNDS = 6
# Before a node that makes NaN or Inf, which may only move what was rounded further ahead.
_MOST_STEPS = 4
# What the runtime makes of a graph costs more than in proportion.
_MOST_NODES = 12_000
_NATIVE = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BOOL}
    | {getattr(ir.DataType, f"{kind}{bits}") for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)}
)
COMPUTED_OTHERWISE = declare(
    "computed-otherwise",
    "onnxruntime's optimizations compute something else than its Q/DQ pairs say",
    hint="Update onnxruntime, or report the node to its project.",
)
NOT_FINITE = declare(
    "not-finite",
    "quantized, it makes NaN or Inf of what is finite in float",
    hint="Keep divisors and the inputs of logarithms away from 0.",
)


def as_written(done: QuantizedDraft, builder: ModelBuilder, sample: int | None = None) -> QuantizedDraft:
    """The model, or another one of the same plan that onnxruntime computes as it is written; else one that says so.

    Args:
        done: the model.
        builder: writes other ones.
        sample: of the data that both models are compared on, to look at; None: a few calibration samples.

    Raises:
        EngineError: onnxruntime ends its process on the model.
        CanceledError: the run was canceled.
    """
    if done.plan.is_empty:
        return done
    services = builder.services
    with services.stages.stage("runtime_check"):
        services.run.progress("runtime_check")
        return _Settling(done, builder, sample).settled()


@dataclass(frozen=True)
class _FoundDifference:
    """What was found about a model: an output that is apart, what kept the runtime from running it at all, or an output
    that is NaN or Inf where the float model's is not.
    """

    apart: Apart | None = None
    failed: ChildOutcome | None = None
    unbounded: str | None = None


class _Settling:
    def __init__(self, done: QuantizedDraft, builder: ModelBuilder, sample: int | None) -> None:
        self._first, self._builder, self._sample = done, builder, sample
        self._case, self._services = builder.case, builder.services
        self._outputs = _comparable(done)
        self._found = _FoundDifference()
        self._feeds: Arrays = []
        self._expected: Arrays = []

    def settled(self) -> QuantizedDraft:
        reason = self._untried()
        if reason is None:
            self._take_samples()
            reason = self._unfed()
        if reason is not None:
            return _told(self._first, f"the model was not run without onnxruntime's optimizations as well: {reason}")
        done, tried, told, found = self._first, Counter[tuple[str, str]](), list[str](), _FoundDifference()
        for _ in range(_ROUNDS):
            looked = self._look(done)
            if isinstance(looked, str):
                return _told(done, f"the model was not run without onnxruntime's optimizations as well: {looked}")
            if looked is None:
                return _told(done, *told)
            found = looked
            if done is self._first:
                self._found = found
            if found.apart is not None and may_saturate(self._case.config):
                break  # that is the host's, and its own note says so
            tensor = self._beginning(done, found)
            if tensor is None and found.apart is not None and found.apart.is_slight:
                return _told(done, *told)  # steps of rounding that have added up
            changed = None if tensor is None else self._changed(done, tensor, found, tried)
            if changed is None:
                break
            told.append(_words(tensor or "", found))
            self._services.run.log(told[-1], "warning")
            done = changed
        if found.failed is not None and found.failed.died:
            raise _deadly(found.failed)
        if found.apart is None:
            return self._first  # the evaluation meets the same, and raises it
        if may_saturate(self._case.config):
            return _told(done, *told)
        apart = self._found.apart or found.apart
        finding = RUNTIME_DIFFERS({"output": apart.output}, **vars(apart))
        return replace(self._first, differs=Differs(finding, apart.plain_db, apart.optimized_db))

    def _untried(self) -> str | None:
        """Why the model is not tried; None if it is."""
        if not isinstance(self._first.content.runnable, bytes):
            return "it is too large to be loaded twice"
        if self._first.emitted.model.graph.num_nodes() > _MOST_NODES:
            return "it has too many nodes"
        return None if self._outputs else "none of its outputs can be compared"

    def _unfed(self) -> str | None:
        odd = {array.dtype for feeds in self._feeds for array in feeds.values() if array.dtype.kind not in "fiub"}
        return f"its inputs are {', '.join(sorted(map(str, odd)))}" if odd else None

    def _take_samples(self) -> None:
        turned = set(self._first.prepared.nhwc_inputs)
        float16_nodes = {
            value.name for value in self._first.emitted.model.graph.inputs if value.dtype == ir.DataType.FLOAT16
        }
        reference, numbers = self._case.reference, [self._sample or 0]
        if self._sample is None:
            reference = replace(reference, data=self._case.calibration)
            numbers = spread(self._case.calibration_samples, _SAMPLES)
        for one in reference.outputs(self._services.run, batch_size=1, samples=numbers):
            self._expected.append({name: np.asarray(one.outputs[name]) for name in self._outputs})
            self._feeds.append(
                {name: _fed(name, array, turned, float16_nodes) for name, array in one.batch.feeds.items()}
            )

    def _look(self, done: QuantizedDraft) -> _FoundDifference | str | None:
        """What is wrong with a model; words: it could not be told; None: nothing."""
        assert isinstance(done.content.runnable, bytes)  # noqa: S101 - seen to before
        ways = self._run(done.content.runnable, self._outputs)
        optimized, plain = ways["optimized"].outputs, ways["plain"].outputs
        failed = next((way for way in ways.values() if way.died), None)
        untried = next((way for way in ways.values() if way.untried), None)
        if failed is None and untried is not None:
            return untried.trouble
        if failed is None and optimized is None and plain is not None:
            failed = ways["optimized"]
        if failed is not None:
            return _FoundDifference(failed=failed)
        if optimized is None:
            return None  # the evaluation meets the same, and raises it as what it is
        if plain is None:
            return f"onnxruntime refuses it so ({ways['plain'].trouble})"
        apart = outputs_apart(self._expected, optimized, plain)
        if apart is not None:
            return _FoundDifference(apart)
        unbounded = no_longer_finite(self._expected, optimized)
        return None if unbounded is None else _FoundDifference(unbounded=unbounded)

    def _run(self, model: bytes, outputs: Collection[str]) -> dict[str, ChildOutcome]:
        return both_ways(model, self._feeds, list(outputs), threads=self._services.threads, run=self._services.run)

    def _beginning(self, done: QuantizedDraft, found: _FoundDifference) -> str | None:
        """The first tensor at which that begins: by bisection of what the tensors are made of, which is no line."""
        assert isinstance(done.content.runnable, bytes)  # noqa: S101 - seen to before
        model = onnx.load_from_string(done.content.runnable)
        there = {name for node in model.graph.node for name in node.output}
        made = [name_of(value) for node in done.prepared.graph for value in node.outputs if is_float32(value)]
        restored = {done.emitted.restored.get(tensor, tensor): tensor for tensor in made}
        made_of = _made_of(model, restored.keys() & there)
        left, first = dict.fromkeys(made_of), None
        while any(name != first for name in left):
            self._services.run.check()
            marks = sum(1 << place for place, name in enumerate(made_of) if name in left)
            sizes = {name: (made_of[name] & marks).bit_count() for name in left if name != first}
            middle = min(sizes, key=lambda name: abs(2 * sizes[name] - len(left)))
            is_off = self._is_off(model, middle, restored[middle], done, found)
            first = middle if is_off else first
            kept = made_of[middle] if is_off else ~made_of[middle]
            left = {name: None for place, name in enumerate(made_of) if name in left and kept >> place & 1}
        return None if first is None or first not in left else restored[first]

    def _is_off(
        self, model: onnx.ModelProto, name: str, tensor: str, done: QuantizedDraft, found: _FoundDifference
    ) -> bool:
        ways = self._run(up_to(model, name), [name])
        optimized, plain = ways["optimized"].outputs, ways["plain"].outputs
        if found.failed is not None:
            return any(way.died for way in ways.values()) or (optimized is None and plain is not None)
        if optimized is None or plain is None:
            return False
        if found.unbounded is not None:
            return not all(np.isfinite(sample[name]).all() for sample in optimized)
        entry = done.plan.activations.get(tensor)
        return tensor_apart(optimized, plain, name, None if entry is None else entry.quantization)

    def _changed(
        self, done: QuantizedDraft, tensor: str, found: _FoundDifference, tried: Counter[tuple[str, str]]
    ) -> QuantizedDraft | None:
        """The model with the node that makes a tensor kept apart, or, where that has been tried, in float; the longer
        it is tried, the more of what comes before a node that makes NaN or Inf.
        """
        draft = done.filled.draft
        value = next((made for node in draft.graph for made in node.outputs if made.name == tensor), None)
        maker = None if value is None else value.producer()
        if value is None or maker is None:
            return None
        apart = found.unbounded is None and draft.form is STATIC and maker.outputs[0] is value
        if apart and not tried["apart", tensor]:
            tried["apart", tensor] += 1
            plan = draft.plan.copy()
            plan.kept_apart = plan.kept_apart | {tensor}
            return self._emitted(done, replace(draft, plan=plan))
        name = node_name(maker)
        steps = tried["in float", name]
        if draft.form is not STATIC or steps >= (1 if found.unbounded is None else _MOST_STEPS):
            return None
        tried["in float", name] += 1
        entry = draft.plan.nodes.get(name)
        if found.unbounded is not None:
            nodes = _up_to_steps(maker, steps + 1)
        else:
            nodes = _up_to_steps(maker, 1 if entry is not None and entry.role is Role.FUSED else 0)
        reason = COMPUTED_OTHERWISE() if found.unbounded is None else NOT_FINITE()
        return self._emitted(done, without(draft, nodes, reason, self._case, self._services))

    def _emitted(self, done: QuantizedDraft, draft: Draft) -> QuantizedDraft:
        emitted = self._builder.emit(draft)
        drafts = [*done.filled.drafts[:-1], replace(draft, algorithm=done.filled.draft.algorithm)]
        return replace(emitted, filled=Filled(drafts, done.filled.outcomes))


def _up_to_steps(node: ir.Node, steps: int) -> list[str]:
    """Names of a node and of those from which so many steps or fewer lead to it."""
    found = last = {node: None}
    for _ in range(steps):
        before = (value.producer() for one in last for value in one.inputs if value is not None)
        last = {one: None for one in before if one is not None and one not in found}
        found = found | last
    return [node_name(one) for one in found]


def _made_of(model: onnx.ModelProto, names: Collection[str]) -> dict[str, int]:
    """By tensor of these, in order, which of them it is made of, itself included: a bit for each place in the order."""
    found: dict[str, int] = {}
    marks: dict[str, int] = {}
    for node in model.graph.node:
        read = 0
        for name in _read(node):
            read |= marks.get(name, 0)
        for name in node.output:
            marks[name] = read
            if name in names:
                marks[name] |= 1 << len(found)
                found[name] = marks[name]
    return found


def _comparable(done: QuantizedDraft) -> list[str]:
    """Outputs that a process can hand over as arrays of numbers."""
    outputs = done.emitted.model.graph.outputs
    return [value.name or "" for value in outputs if isinstance(value.type, ir.TensorType) and value.dtype in _NATIVE]


def _fed(name: str, array: np.ndarray, turned: Collection[str], float16_nodes: Collection[str | None]) -> np.ndarray:
    if name in float16_nodes and array.dtype == np.float32:
        array = array.astype(np.float16)
    return np.ascontiguousarray(array.transpose(TO_NHWC)) if name in turned and array.ndim == len(TO_NHWC) else array


def _told(done: QuantizedDraft, *sentences: str) -> QuantizedDraft:
    return replace(done, plan_log=done.plan_log.followed_by(*sentences)) if sentences else done


def _words(tensor: str, found: _FoundDifference) -> str:
    if found.unbounded is not None:
        return f"{tensor}: quantized, it makes output {found.unbounded} NaN or Inf; left in float, with what it reads"
    if found.apart is None:
        trouble = "" if found.failed is None else cleaned(found.failed.trouble)
        return f"{tensor}: onnxruntime's optimizations fail there ({trouble}); written otherwise"
    apart = found.apart
    return (
        f"{tensor}: onnxruntime's optimizations change it ({apart.optimized} instead of {apart.plain} at "
        f"output {apart.output}); written in another form"
    )


def _deadly(died: ChildOutcome) -> EngineError:
    return EngineError(
        f"onnxruntime cannot run the quantized model: {died.trouble}",
        hint="Exclude nodes until it runs, or update onnxruntime; a float model that it runs can be sent to us.",
    )
