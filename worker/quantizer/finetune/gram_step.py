"""AdaRound and AdaQuant from second moments: one walk of the network, layer after layer."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.finetune.arrays import arrays_on
from worker.quantizer.finetune.geometry import UnsupportedLayerError
from worker.quantizer.finetune.gradient_layers import Site, layers
from worker.quantizer.finetune.gradient_samples import SampleGatherer
from worker.quantizer.finetune.gradient_selection import EndToEnd
from worker.quantizer.finetune.gradient_step import GradientBench, Spec
from worker.quantizer.finetune.gram import GramSettings, Solved, solve
from worker.quantizer.finetune.gram_layer import Entry, Freedom, GramLayer
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
# A step of the gradient solver takes as long as so many multiplications, however small the layer.
_STEP = 3e7


def finetune_by_moments(draft: Draft, workshop: Workshop, spec: Spec) -> Change:
    """A new draft whose integers, and biases, reconstruct the float layers better.

    Layers with so many inputs that gradients come cheaper than second moments are left to the gradient solver.

    Args:
        draft: calibrated.
        workshop: data, threads, progress, checkpoints.
        spec: options.

    Raises:
        EngineError: a device is not there, or the runtime failed on the data.
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
    sites = {node_name(site.nodes[0]): site for site in layers(draft.graph, plan, spec.target_op_type)}
    with (
        Walk(draft.prepared, plan, feed, visited=lambda node: node_name(node) in chosen) as walk,
        SampleGatherer(walk, limits, mixed=spec.drop_ratio < 1.0) as gatherer,
    ):
        judge = EndToEnd(walk, spec.output_index) if spec.selective_update else None
        by_gradients = GradientBench(plan, workshop, spec, gatherer, judge, tally)
        bench = _Bench(plan, workshop, spec, tally, judge, sites, by_gradients)
        for visit in walk.visits():
            run.progress(
                spec.method, visit.index, visit.total, "layers", tally.words(visit.name, visit.index, visit.total)
            )
            bench.finetune(visit)
        run.progress(spec.method, walk.total, walk.total, "layers")
        notes = list(walk.notes)
    if bench.left:
        names = ", ".join(bench.left)
        notes.append(f"{names} by gradients, as second moments would take more time than these, or too much memory")
    summary = tally.summary(notes, "layers")
    changed = replace(draft, plan=plan) if tally.changed else None
    return Change(changed, tuple(tally.changed), summary, errors=tally.errors)


def _is_meant(node: ir.Node, plan: QuantizationPlan, spec: Spec) -> bool:
    """True for a quantized node of the wanted operators with an integer weight."""
    weight = plan.weights.get(node.inputs[1].name or "") if len(node.inputs) > 1 and node.inputs[1] else None
    return (
        node.op_type in spec.target_op_type
        and plan.nodes[node_name(node)].quantized
        and weight is not None
        and isinstance(weight.quantization, IntegerGrid)
    )


def _is_solvable(node: ir.Node, plan: QuantizationPlan, tally: Tally) -> bool:
    """False, with a word in the tally, for a node whose weight cannot be chosen as a matrix of integers."""
    try:
        GramLayer(node, plan)
    except UnsupportedLayerError as error:
        tally.skipped[node_name(node)] = str(error)
        return False
    return True


def moments_are_cheaper(
    shape: tuple[int, int, int], patches: int, positions_per_sample: float, steps: int, batch_size: int
) -> bool:
    """True if a layer is solved from second moments in less time than by gradients, and within memory.

    Args:
        shape: groups, outputs per group, inputs per group.
        patches: that the moments would be taken from.
        positions_per_sample: patches that one sample has.
        steps: of the gradient solver.
        batch_size: samples in a step.
    """
    groups, outputs, inputs = shape
    if groups * inputs * inputs * 4 > _MOST_BYTES:
        return False
    # moments and products; inverses in float64; a few sweeps from two starts and after each round
    moments = groups * inputs * (2.0 * patches * (inputs + outputs) + 10.0 * inputs * inputs + 12.0 * inputs * outputs)
    # forward, and backward by inputs and by weights, at half the speed of plain products
    gradients = steps * (6.0 * batch_size * positions_per_sample * groups * inputs * outputs + _STEP)
    return moments <= gradients


@dataclass(frozen=True)
class _Bench:
    """Where one node after another is worked on; ``plan`` is what the walk runs with."""

    plan: QuantizationPlan
    workshop: Workshop
    spec: Spec
    tally: Tally
    judge: EndToEnd | None
    sites: dict[str, Site]
    by_gradients: GradientBench
    left: list[str] = field(default_factory=list)

    def finetune(self, visit: Visit) -> None:
        """Solve the node, or take what an earlier attempt found; write it into the plan if it is kept."""
        store, key = self.workshop.context.checkpoint, f"{self.spec.method} {visit.name}"
        layer = GramLayer(visit.node, self.plan)
        if visit.name in self.sites and not self._is_for_moments(visit, layer):
            self.left.append(visit.name)
            self.by_gradients.finetune(self.sites[visit.name], visit.index)
            return
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

    def _is_for_moments(self, visit: Visit, layer: GramLayer) -> bool:
        shape, steps, part = layer.geometry.shape, self.spec.num_iterations, visit.parts[0]
        batch_size = min(self.spec.batch_size, visit.samples)
        if moments_are_cheaper(shape, _wanted(layer), 1.0, steps, batch_size):
            return True  # whatever is in the samples, which need not be looked at then
        one = layer.geometry.positions(visit.x(part)) / part.valid
        return moments_are_cheaper(shape, min(_wanted(layer), round(one * visit.samples)), one, steps, batch_size)

    def _solve(self, visit: Visit, layer: GramLayer) -> Solved:
        context, spec = self.workshop.context, self.spec
        seed = context.config.seed if spec.fixed_seed is None else spec.fixed_seed
        patches = sample_patches(
            visit,
            layer.geometry,
            layer.matrix,
            layer.float_bias,
            wanted=_wanted(layer),
            seed=int(np.random.SeedSequence([seed, zlib.crc32(visit.name.encode())]).generate_state(1)[0]),
            quantized_share=spec.drop_ratio,
        )
        problem, arrays = layer.problem(Freedom.of(spec)), arrays_on(spec.optim_device)
        return solve(problem, patches, GramSettings(), context.run.check, arrays)


def _wanted(layer: GramLayer) -> int:
    """Patches that moments are taken from."""
    groups, outputs, inputs = layer.geometry.shape
    one = groups * (inputs + outputs)
    wanted = max(_PATCHES_PER_INPUT * inputs + _FEWEST_PATCHES, _CHEAP_ELEMENTS // one)
    return min(wanted, max(_MOST_ELEMENTS // one, _FEWEST_PATCHES))


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
