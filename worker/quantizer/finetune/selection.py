"""Whether a layer's new parameters bring the whole network nearer to the float one: only what comes behind is run."""

from __future__ import annotations

import numpy as np

from service.contracts.errors import InvalidConfigError
from worker.quantizer.graph.values import name_of
from worker.quantizer.layerwise import Part, Walk
from worker.quantizer.layerwise.feed import real_samples

# Samples that the rest of the network is run on for every layer.
_SAMPLES = 16


class EndToEnd:
    """The error of one output of the network, from the walk's frontier on.

    Args:
        walk: stands before the layer in question.
        output_index: which output.

    Raises:
        InvalidConfigError: the network has no such output.
    """

    def __init__(self, walk: Walk, output_index: int) -> None:
        outputs = [name_of(value) for value in walk.graph.outputs]
        if output_index >= len(outputs):
            raise InvalidConfigError(
                f"output_index is {output_index}, and the model has {len(outputs)} outputs: {', '.join(outputs)}",
                hint="Outputs are counted from 0.",
            )
        self._walk = walk
        self._output = outputs[output_index]
        self._floats: dict[int, np.ndarray] = {}
        self._error: float | None = None

    def look(self, index: int) -> None:
        """Measure the network as it is, once; ``index`` is that of the visit."""
        if self._error is None:
            self._error = self._measure(index)

    def accepts(self, index: int) -> bool:
        """True if the error is smaller now than when it was last accepted; remembers the smaller one."""
        error = self._measure(index)
        if error is None or (self._error is not None and not error < self._error):
            return False
        self._error = error
        return True

    def _parts(self) -> list[Part]:
        chosen, samples = [], 0
        for part in self._walk.frontier.parts:
            if samples < _SAMPLES:
                chosen.append(part)
                samples += part.valid
        return chosen

    def _measure(self, index: int) -> float | None:
        """Mean squared error of the output; None if nothing from the visit on has a part in it."""
        frontier, nodes = self._walk.frontier, self._walk.rest(index)
        if not any(value.name == self._output for node in nodes for value in node.outputs):
            return None
        if not self._floats:
            piece = frontier.piece(nodes, [self._output], quantized=False, unrounded=False)
            for part in self._parts():
                self._floats[part.number] = frontier.run(piece, part, quantized=False)[self._output]
        piece = frontier.piece(nodes, [self._output], quantized=True, unrounded=True)
        total, elements = 0.0, 0
        for part in self._parts():
            made = frontier.run(piece, part, quantized=True)[self._output]
            wanted = self._floats[part.number]
            difference = real_samples(made, part).astype(np.float64) - real_samples(wanted, part)
            total += float(np.square(difference).sum())
            elements += difference.size
        return total / max(elements, 1)
