"""Bias correction as a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import BiasCorrection
from service.contracts.reason import declare
from worker.quantizer.equalization.bias_correction.creation import Places, make_places
from worker.quantizer.equalization.bias_correction.full import correct_by_walking
from worker.quantizer.equalization.bias_correction.places import correctable
from worker.quantizer.graph.rewriting import rank_of
from worker.quantizer.graph.values import name_of
from worker.quantizer.ops.linear import channel_axis, linear_view
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Step, Toolkit
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.reducers import ChannelMean
from worker.quantizer.walk import Feed, Walk

NO_BIAS = declare("no-bias-to-correct", "there is no bias to correct")

_NAMED_AT_MOST = 4


class BiasCorrectionStep(Step[BiasCorrection]):
    """Corrects biases, in closed form or layer after layer; see ``mean_shift`` and ``full``."""

    def requests(self, draft: Draft) -> list[Request]:
        """In closed form: the mean input of every linear node."""
        if self.spec.mode == "full":
            return []
        wanted = dict.fromkeys(_read(node) for node in correctable(draft.graph, draft.plan))
        return [Request(key[0], ChannelMean(key[1]), pooled=key[1] == 1) for key in wanted if key is not None]

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        """The draft with corrected biases."""
        places = make_places(draft, toolkit.case.config, insert_add=self.spec.insert_add)
        plan, notes = places.draft.plan.copy(), list[str]()
        if self.spec.mode == "full":
            with Walk(places.draft.prepared, plan, Feed.of(toolkit, samples=self.spec.data_size)) as walk:
                nodes = list(correct_by_walking(walk, places.found, places.left, toolkit.services.run))
                notes = walk.notes
        else:
            nodes = _correct_in_closed_form(places, Parameters(places.draft.graph, plan), self._means(draft))
        if not nodes:
            return Change.nothing(NO_BIAS.saying("; ".join([NO_BIAS.template, *_told(places)])))
        told = [f"{len(nodes)} biases corrected", *_told(places), *notes]
        return Change(replace(places.draft, plan=plan), tuple(nodes), "; ".join(told))

    def _means(self, draft: Draft) -> dict[tuple[str, int], np.ndarray]:
        found = {}
        for request in draft.statistics[self.method]:
            mean = request.reducer.result() if isinstance(request.reducer, ChannelMean) else None
            if mean is not None and isinstance(request.reducer, ChannelMean):
                found[request.tensor, request.reducer.axis] = mean
        return found


def _read(node: ir.Node) -> tuple[str, int] | None:
    """What a linear node reads, and the axis of its channels; None if it transposes it, or reads a single vector."""
    linear = linear_view(node)
    if linear is None or linear.data is None or linear.transposes_data or rank_of(linear.data) == 1:
        return None
    return name_of(linear.data), channel_axis(node)


def _correct_in_closed_form(
    places: Places, parameters: Parameters, means: Mapping[tuple[str, int], np.ndarray]
) -> list[str]:
    """Correct the parameters; the names of the corrected nodes."""
    corrected = []
    for name, place in places.found.items():
        node = place.node
        key = _read(node)
        mean = means.get(key) if key is not None else None
        shift = None if mean is None else mean_shift(node, parameters, mean)
        if shift is not None and shift.any() and np.isfinite(shift).all():
            place.add(parameters, place.of(parameters).unrounded, shift)
            corrected.append(name)
    return corrected


def mean_shift(node: ir.Node, parameters: Parameters, mean: np.ndarray) -> np.ndarray | None:
    """Mean output that rounding the weight W to W~ takes: (W - W~) E[x], float64 [out]; None if it is not rounded.

    E[x] is the mean input in the float network (Nagel et al. 2019, Data-Free Quantization, section 4.2). At zero-padded
    borders the mean is taken as if the input went on.

    Args:
        node: Conv, ConvTranspose, Gemm or MatMul with a planned weight.
        parameters: of a filled plan.
        mean: float64 [in], mean input per channel.
    """
    linear = linear_view(node)
    weight = parameters.of(node, 1)
    if linear is None or linear.stacked or weight is None or weight.grid is None:
        return None
    lost = linear.matrix(weight.original.astype(np.float64) - weight.present)
    sums = lost.reshape(*lost.shape[:2], -1, math.prod(linear.kernel)).sum(axis=3)
    if node.op_type == "ConvTranspose":  # every output position meets one in so many taps of the kernel
        sums = sums / math.prod(linear.window.strides)
    made = np.einsum("goi,gi->go", sums, mean.reshape(linear.groups, -1)).reshape(-1)
    return np.asarray(linear.alpha * made)


def _told(places: Places) -> list[str]:
    """What was made for the corrections, and which nodes have none."""
    told = [f"{count} made for it: {what}" for what, count in places.created.items()]
    for reason, count in Counter(places.left.values()).most_common(_NAMED_AT_MOST):
        told.append(f"{count} left alone: {reason}")
    return told
