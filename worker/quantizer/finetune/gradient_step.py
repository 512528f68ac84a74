"""AdaRound and AdaQuant by gradients: one walk of the network, site after site, each with what the network quantized so
far gives it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import AdaQuant, AdaRound
from worker.quantizer.finetune.gradient import GradientSettings, Solved, UnsupportedUnitError, solve
from worker.quantizer.finetune.gradient_checkpoint import from_bytes, to_bytes
from worker.quantizer.finetune.gradient_layers import Site, blocks, layers, unit_of
from worker.quantizer.finetune.gradient_samples import SampleGatherer
from worker.quantizer.finetune.gradient_selection import EndToEnd
from worker.quantizer.finetune.tally import Tally
from worker.quantizer.graph.values import name_of, node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.parameters import fill_bias
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Workshop
from worker.quantizer.walk import Feed, Limits, Walk

Spec = AdaRound | AdaQuant


def finetune_by_gradient(draft: Draft, workshop: Workshop, spec: Spec) -> Change:
    """A new draft whose weights, and with AdaQuant biases and normalizations, reconstruct the float layers better.

    Args:
        draft: calibrated.
        workshop: data, threads, progress, checkpoints.
        spec: options.

    Raises:
        EngineError: a device is not there, or the runtime failed on the data.
        CanceledError: the run was canceled.
        ResourceLimitError: the tensors of a layer fit neither into memory nor on disk.
    """
    plan = draft.plan.copy()
    find = blocks if spec.block_wise else layers
    sites = {node_name(site.nodes[0]): site for site in find(draft.graph, plan, spec.target_op_type)}
    if not sites:
        return Change(None, (), f"there is no quantized layer of type {', '.join(spec.target_op_type)}")
    limits = Limits(level=spec.mem_opt_level, disk_bytes=spec.cache_limit_bytes)
    feed = Feed.of(workshop, samples=spec.data_size, limits=limits, device=spec.infer_device)
    run, tally = workshop.context.run, Tally()
    with Walk(draft.prepared, plan, feed, visited=lambda node: node_name(node) in sites) as walk:
        judge = EndToEnd(walk, spec.output_index) if spec.selective_update else None
        with SampleGatherer(walk, limits, mixed=spec.drop_ratio < 1.0) as gatherer:
            bench = GradientBench(plan, workshop, spec, gatherer, judge, tally)
            for visit in walk.visits():
                site = sites[visit.name]
                words = tally.words(site.name, visit.index, visit.total)
                run.progress(spec.method, visit.index, visit.total, "layers", words)
                bench.finetune(site, visit.index)
        run.progress(spec.method, walk.total, walk.total, "layers")
        notes = list(walk.notes)
        if gatherer.on_disk:
            notes.append(f"the samples of {gatherer.on_disk} layers lay on disk")
    summary = tally.summary(notes, "layers and blocks" if spec.block_wise else "layers")
    if not tally.changed:
        return Change(None, (), summary, errors=tally.errors)
    return Change(replace(draft, plan=plan), tuple(tally.changed), summary, errors=tally.errors)


@dataclass(frozen=True)
class GradientBench:
    """Where one site after another is worked on; ``plan`` is what the walk runs with."""

    plan: QuantizationPlan
    workshop: Workshop
    spec: Spec
    gatherer: SampleGatherer
    judge: EndToEnd | None
    tally: Tally

    def finetune(self, site: Site, index: int) -> None:
        """Solve the site, or take what an earlier attempt found; write it into the plan if it is kept."""
        checkpoint, key = self.workshop.context.checkpoint, f"{self.spec.method} gradient {site.name}"
        stored = checkpoint.load(key)
        if stored is not None:
            solved, kept = from_bytes(stored)
            self.tally.resumed += 1
            if kept:
                _apply(site, self.plan, solved)
        else:
            found = self._solve(site)
            if found is None:
                return
            solved, kept = found, self._keep(site, found, index)
            checkpoint.save(key, to_bytes(solved, kept=kept))
        self.tally.errors[site.name] = solved.error_before, solved.error_after if kept else solved.error_before
        if kept:
            self.tally.changed += [node_name(node) for node in site.tuned]

    def _solve(self, site: Site) -> Solved | None:
        """What the solver found; None if there is nothing for it to do."""
        context, spec = self.workshop.context, self.spec
        unit = unit_of(site, self.plan, output_grid=spec.output_qdq)
        if not any(_moves(parameter.grid, parameter.kind, spec) for parameter in unit.parameters.values()):
            self.tally.skipped[site.name] = "nothing in it moves"
            return None
        samples = self.gatherer.gather(site)
        if isinstance(samples, str):
            self.tally.skipped[site.name] = samples
            return None
        settings = settings_of(spec, site.name, context.config.seed, context.threads)
        try:
            return solve(unit, samples, settings, context.run.check)
        except UnsupportedUnitError as error:
            self.tally.skipped[site.name] = f"{error} is not supported"
            return None

    def _keep(self, site: Site, solved: Solved, index: int) -> bool:
        """Write what was found into the plan; False if nothing was, or if the whole network got worse."""
        if not solved.changed:
            return False
        if self.judge is None:
            _apply(site, self.plan, solved)
            return True
        before = self.plan.copy()
        self.judge.look(index)
        _apply(site, self.plan, solved)
        if self.judge.accepts(index):
            return True
        _restore(self.plan, before)
        self.tally.refused += 1
        return False


def _moves(grid: object, kind: str, spec: Spec) -> bool:
    if isinstance(spec, AdaRound):
        return kind == "weight" and isinstance(grid, IntegerGrid)
    return kind != "bias" or spec.update_bias


def settings_of(spec: Spec, name: str, seed: int, threads: int) -> GradientSettings:
    """The solver's settings for one site; every site draws from a generator of its own, so that none hangs on others.

    Args:
        spec: options.
        name: of the site.
        seed: of the config; ``spec.fixed_seed`` wins.
        threads: CPU threads.
    """
    chosen = seed if spec.fixed_seed is None else spec.fixed_seed
    own = int(np.random.SeedSequence([chosen, zlib.crc32(name.encode())]).generate_state(1)[0])
    adjust = spec.lr_adjust
    common = GradientSettings(
        algorithm=spec.method,
        num_iterations=spec.num_iterations,
        batch_size=spec.batch_size,
        learning_rate=spec.learning_rate,
        seed=own,
        device=spec.optim_device,
        threads=threads,
        early_stop=spec.early_stop,
        lr_adjust=None if adjust is None else (adjust.threshold, adjust.learning_rate),
        drop_ratio=spec.drop_ratio,
    )
    if isinstance(spec, AdaRound):
        return replace(
            common, reg_param=spec.reg_param, beta_range=spec.beta_range, warm_start=spec.warm_start, update_bias=False
        )
    return replace(common, update_bias=spec.update_bias, update_scales=spec.update_scales, dampening=spec.dampening)


def _apply(site: Site, plan: QuantizationPlan, solved: Solved) -> None:
    """Write what the solver found into the plan."""
    for name, scale in solved.scales.items():
        grid = plan.weights[name].quantization
        if isinstance(grid, IntegerGrid):
            plan.weights[name].quantization = replace(grid, scale=scale)
    for name, integers in solved.integers.items():
        plan.weights[name].integers = integers
    for node in site.tuned:
        bias = plan.biases.get(node_name(node))
        if bias is None or bias.quantization is None or bias.integers is None:
            continue
        weight = node.inputs[1]
        values = solved.values.get(bias.initializer)
        if weight is not None and name_of(weight) in solved.scales and bias.spec.dtype == "int32":
            values = bias.quantization.dequantize(bias.integers) if values is None else values
            fill_bias(_graph(node), node, plan)
        if values is not None:
            bias.integers = bias.quantization.quantize(values.reshape(-1))
    integer_biases = {bias.initializer for bias in plan.biases.values() if bias.integers is not None}
    for name, values in solved.values.items():
        if name not in integer_biases:
            plan.moved[name] = values


def _graph(node: ir.Node) -> ir.Graph:
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        raise TypeError(f"node {node.name!r} is in no graph")
    return graph


def _restore(plan: QuantizationPlan, before: QuantizationPlan) -> None:
    """Put the parameters back; ``plan`` stays the object that the walk reads."""
    plan.weights, plan.biases, plan.moved = before.weights, before.biases, before.moved
