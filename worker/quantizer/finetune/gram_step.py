"""AdaRound from second moments: one walk of the network, layer after layer."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import AdaRound
from worker.quantizer.finetune.geometry import UnsupportedLayerError
from worker.quantizer.finetune.gradient_selection import EndToEnd
from worker.quantizer.finetune.gram import GramSettings, Solved, solve
from worker.quantizer.finetune.gram_layer import Entry, GramLayer
from worker.quantizer.finetune.patches import sample_patches
from worker.quantizer.finetune.tally import Tally
from worker.quantizer.graph.values import node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Workshop
from worker.quantizer.walk import Feed, Limits, Visit, Walk

# Patches: enough to tell the directions of the inputs apart, and more of them where they are cheap.
_PATCHES_PER_INPUT, _FEWEST_PATCHES, _CHEAP_ELEMENTS = 10, 4000, 2_000_000
# Elements of the patches that are looked at at once.
_MOST_ELEMENTS = 40_000_000
# Bytes of one matrix of second moments beyond which a layer is left to the gradient solver.
_MOST_BYTES = 2**30


def finetune_by_moments(draft: Draft, workshop: Workshop, spec: AdaRound) -> Change:
    """A new draft whose integers, and biases, reconstruct the float layers better.

    Args:
        draft: calibrated.
        workshop: data, threads, progress, checkpoints.
        spec: options.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
        ResourceLimitError: the tensors of a layer fit neither into memory nor on disk.
    """
    plan, tally = draft.plan.copy(), Tally()
    chosen = {
        node_name(node) for node in draft.graph if _is_meant(node, plan, spec) and _is_solvable(node, plan, tally)
    }
    if not chosen and not tally.skipped:
        return Change(None, (), f"no layer of type {', '.join(spec.target_op_type)} has an integer weight")
    limits = Limits(level=spec.mem_opt_level, disk_bytes=spec.cache_limit_bytes)
    feed = Feed.of(workshop, samples=spec.data_size, limits=limits, device=spec.infer_device)
    run = workshop.context.run
    with Walk(draft.prepared, plan, feed, visited=lambda node: node_name(node) in chosen) as walk:
        bench = _Bench(
            plan, workshop, spec, tally, EndToEnd(walk, spec.output_index) if spec.selective_update else None
        )
        for visit in walk.visits():
            run.progress(
                spec.method, visit.index, visit.total, "layers", tally.words(visit.name, visit.index, visit.total)
            )
            bench.finetune(visit)
        run.progress(spec.method, walk.total, walk.total, "layers")
        summary = tally.summary(list(walk.notes), "layers")
    changed = replace(draft, plan=plan) if tally.changed else None
    return Change(changed, tuple(tally.changed), summary, errors=tally.errors)


def _is_meant(node: ir.Node, plan: QuantizationPlan, spec: AdaRound) -> bool:
    """True for a quantized node of the wanted operators with an integer weight."""
    weight = plan.weights.get(node.inputs[1].name or "") if len(node.inputs) > 1 and node.inputs[1] else None
    return (
        node.op_type in spec.target_op_type
        and plan.nodes[node_name(node)].quantized
        and weight is not None
        and isinstance(weight.quantization, IntegerGrid)
    )


def _is_solvable(node: ir.Node, plan: QuantizationPlan, tally: Tally) -> bool:
    """False, with a word in the tally, for a node that second moments are no way for."""
    try:
        groups, _, inputs = GramLayer(node, plan).geometry.shape
    except UnsupportedLayerError as error:
        tally.skipped[node_name(node)] = str(error)
        return False
    if groups * inputs * inputs * 4 > _MOST_BYTES:
        tally.skipped[node_name(node)] = f"{inputs} inputs are too many for second moments; solver gradient takes them"
        return False
    return True


@dataclass(frozen=True)
class _Bench:
    """Where one node after another is worked on; ``plan`` is what the walk runs with."""

    plan: QuantizationPlan
    workshop: Workshop
    spec: AdaRound
    tally: Tally
    judge: EndToEnd | None

    def finetune(self, visit: Visit) -> None:
        """Solve the node, or take what an earlier attempt found; write it into the plan if it is kept."""
        store, key = self.workshop.context.checkpoint, f"{self.spec.method} {visit.name}"
        layer = GramLayer(visit.node, self.plan)
        stored = store.load(key)
        if stored is not None:
            self.tally.resumed += 1
            errors, entry = from_bytes(stored)
            if entry is not None:
                layer.write(entry)
        else:
            solved = self._solve(visit, layer)
            errors = solved.before, solved.after
            entry = layer.entry(solved)
            if not solved.after < solved.before or not self._keeps(visit.index, layer, entry):
                errors, entry = (solved.before, solved.before), None
            store.save(key, to_bytes(errors, entry))
        self.tally.errors[visit.name] = errors
        if entry is not None:
            self.tally.changed.append(visit.name)

    def _keeps(self, index: int, layer: GramLayer, entry: Entry) -> bool:
        """Write what was found into the plan; False, and nothing written, if the whole network got worse."""
        if self.judge is None:
            layer.write(entry)
            return True
        before = layer.present()
        self.judge.look(index)
        layer.write(entry)
        if self.judge.accepts(index):
            return True
        layer.write(before)
        self.tally.refused += 1
        return False

    def _solve(self, visit: Visit, layer: GramLayer) -> Solved:
        context, spec = self.workshop.context, self.spec
        groups, outputs, inputs = layer.geometry.shape
        seed = context.config.seed if spec.fixed_seed is None else spec.fixed_seed
        one = groups * (inputs + outputs)
        wanted = max(_PATCHES_PER_INPUT * inputs + _FEWEST_PATCHES, _CHEAP_ELEMENTS // one)
        patches = sample_patches(
            visit,
            layer.geometry,
            layer.matrix,
            layer.float_bias,
            wanted=min(wanted, max(_MOST_ELEMENTS // one, _FEWEST_PATCHES)),
            seed=int(np.random.SeedSequence([seed, zlib.crc32(visit.name.encode())]).generate_state(1)[0]),
            quantized_share=spec.drop_ratio,
        )
        return solve(layer.problem(spec), patches, GramSettings(), context.run.check)


def to_bytes(errors: tuple[float, float], entry: Entry | None) -> bytes:
    """A finished layer for a checkpoint: plain arrays."""
    arrays = {"errors": np.asarray(errors)}
    if entry is not None:
        arrays |= {"integers": entry.integers, "scale": entry.scale}
        arrays |= {} if entry.bias is None else {"bias": entry.bias}
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def from_bytes(stored: bytes) -> tuple[tuple[float, float], Entry | None]:
    """The inverse of ``to_bytes``."""
    with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
        before, after = arrays["errors"].tolist()
        if "integers" not in arrays:
            return (before, after), None
        return (before, after), Entry(arrays["integers"], arrays["scale"], arrays.get("bias"))
