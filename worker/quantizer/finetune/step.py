"""Reconstruction as a step: one walk of the network, one layer or residual block after the other, each with what the
network quantized so far gives it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from service.contracts.reason import declare
from worker.quantizer.finetune.adaquant import AdaQuantMethod
from worker.quantizer.finetune.adaround import AdaRoundMethod
from worker.quantizer.finetune.effort import efforts
from worker.quantizer.finetune.gradient.solver import GradientSolver
from worker.quantizer.finetune.moments.solver import MomentsSolver
from worker.quantizer.finetune.reconstruction.layers import Site, blocks, layers
from worker.quantizer.finetune.reconstruction.method import Method, Spec
from worker.quantizer.finetune.reconstruction.outcome import Outcome
from worker.quantizer.finetune.reconstruction.samples import SampleGatherer
from worker.quantizer.finetune.reconstruction.selection import EndToEnd
from worker.quantizer.finetune.reconstruction.tally import NOTHING_BETTER, Tally
from worker.quantizer.finetune.telling import tell_layer
from worker.quantizer.graph.values import node_name
from worker.quantizer.numerics.blocks import NotFiniteError
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Step, Toolkit
from worker.quantizer.walk import Feed, Limits, Visit, Walk

NO_LAYER = declare("no-layer-of-type", "there is no quantized layer of type {op_types}")
NO_INTEGER_WEIGHT = declare("no-integer-weight", "no layer has a weight that can be chosen as a matrix of integers")

_MOMENTS_WORDS = "solver moments, in which batch_size, num_iterations and learning_rate play no part"
_METHODS: Mapping[str, Callable[[Any], Method]] = {"adaround": AdaRoundMethod, "adaquant": AdaQuantMethod}


class FinetuneStep(Step[Spec]):
    """AdaRound and AdaQuant: chooses integers, and what else may move, so that layers make what the float ones do."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        """The draft with parameters that reconstruct the float layers better.

        From second moments, layers with so many inputs that gradients come cheaper are left to the gradient solver;
        where samples differ in shape, only those whose moments do not fit into memory.

        Raises:
            EngineError: a device is not there, or the runtime failed on the data.
            CanceledError: the run was canceled.
            ResourceLimitError: the tensors of a layer fit neither into memory nor on disk.
        """
        spec, services, plan, tally = self.spec, toolkit.services, draft.plan.copy(), Tally()
        parameters = Parameters(draft.graph, plan)
        method = _METHODS[spec.method](spec)
        by_moments = MomentsSolver(parameters, method, services.run) if spec.solver == "moments" else None
        find = blocks if spec.block_wise and by_moments is None else layers
        sites = {site.name: site for site in find(draft.graph, plan, spec.target_op_type)}
        if not sites:
            return Change.nothing(NO_LAYER(op_types=", ".join(spec.target_op_type)))
        if by_moments is not None:
            refusals = {name: by_moments.refusal(site) for name, site in sites.items()}
            tally.skipped = {name: reason for name, reason in refusals.items() if reason is not None}
        wanted = sites.keys() - tally.skipped.keys()
        if not wanted:
            return Change.nothing(NO_INTEGER_WEIGHT.saying(tally.summary([], "layers")))
        limits = Limits(level=spec.mem_opt_level, disk_bytes=spec.cache_limit_bytes)
        feed = Feed.of(toolkit, samples=spec.data_size, limits=limits, device=spec.infer_device)
        with (
            Walk(draft.prepared, plan, feed, visited=lambda node: node_name(node) in wanted) as walk,
            SampleGatherer(walk.frontier, limits, mixed=spec.drop_ratio < 1.0) as gatherer,
        ):
            judge = EndToEnd(walk, spec.output_index) if spec.selective_update else None
            by_gradients = GradientSolver(parameters, method, services, gatherer)
            varies = bool(feed.data.varying(feed.inputs))
            bench = _Bench(parameters, toolkit, spec, by_moments, by_gradients, judge, tally, varies)
            effort = efforts([sites[name] for name in wanted], by_moments)
            behind, whole = 0.0, sum(effort.values())
            for visit in walk.visits():
                words = tally.words(visit.name, visit.index, visit.total)
                services.run.progress(spec.method, visit.index, visit.total, "layers", words, share=behind / whole)
                behind += effort[visit.name]
                bench.reconstruct(sites[visit.name], visit)
            services.run.progress(spec.method, walk.total, walk.total, "layers")
        what = "layers and blocks" if any(len(site.tuned) > 1 for site in sites.values()) else "layers"
        solved = [] if by_moments is None else [_MOMENTS_WORDS]
        summary = tally.summary([*solved, *walk.notes, *gatherer.notes], what)
        if not tally.changed:
            return Change.nothing(NOTHING_BETTER.saying(summary), errors=tally.errors)
        return Change(replace(draft, plan=plan), tuple(tally.changed), summary, errors=tally.errors)


@dataclass(frozen=True)
class _Bench:
    """Where one site after another is worked on.

    ``parameters`` are those that the walk runs with; ``varies`` if its samples differ in shape.
    """

    parameters: Parameters
    toolkit: Toolkit
    spec: Spec
    by_moments: MomentsSolver | None
    by_gradients: GradientSolver
    judge: EndToEnd | None
    tally: Tally
    varies: bool

    def reconstruct(self, site: Site, visit: Visit) -> None:
        """Solve the site, or take what an earlier attempt found; write it into the plan if it is kept; tell of it."""
        services = self.toolkit.services
        store, key = services.checkpoint, f"{self.spec.method} {site.name}"
        stored = store.load_as(key, Outcome.from_bytes)
        moments = self.by_moments
        # Gradients run samples together, which those of different shapes cannot.
        if moments is not None and not (moments.fits(visit) if self.varies else moments.is_cheaper(visit)):
            self.tally.by_gradients.append(site.name)
            moments = None
        found = self._solve(site, visit, moments) if stored is None else stored
        if isinstance(found, str):
            self.tally.skipped[site.name] = found
            return
        if stored is None:
            found = found if self._keeps(site, found, visit.index) else found.undone()
            if store.is_kept:
                store.save(key, found.to_bytes(), shared=True)
            services.reached("after_layer")
        else:
            self.tally.resumed += 1
            found.write(site.tuned, self.parameters)
        self.tally.errors[site.name] = found.error_before, found.error_after
        if found.changed:
            self.tally.changed += [node_name(node) for node in site.tuned]
        errors = self.tally.errors[site.name]
        tell_layer(services.run, self.spec.method, visit.index + 1, visit.total, site.name, *errors)

    def _solve(self, site: Site, visit: Visit, moments: MomentsSolver | None) -> Outcome | str:
        """What a solver found, or why there is nothing to find."""
        seed = site_seed(self.spec, self.toolkit.case.config.seed, site.name)
        try:
            return self.by_gradients.solve(site, seed) if moments is None else moments.solve(visit, seed)
        except NotFiniteError as error:
            return str(error)

    def _keeps(self, site: Site, found: Outcome, index: int) -> bool:
        """Write what was found into the plan; False if nothing was, or if the whole network got worse."""
        if not found.changed:
            return False
        if self.judge is None:
            found.write(site.tuned, self.parameters)
            return True
        before = self.parameters.plan.copy()
        self.judge.look(index)
        found.write(site.tuned, self.parameters)
        if self.judge.accepts(index):
            return True
        self.parameters.restore(before)
        self.tally.refused += 1
        return False


def site_seed(spec: Spec, seed: int, name: str) -> int:
    """Every site draws from a generator of its own, so that none hangs on others.

    Args:
        spec: its ``fixed_seed`` wins.
        seed: of the config.
        name: of the site.
    """
    chosen = seed if spec.fixed_seed is None else spec.fixed_seed
    return int(np.random.SeedSequence([chosen, zlib.crc32(name.encode())]).generate_state(1)[0])
