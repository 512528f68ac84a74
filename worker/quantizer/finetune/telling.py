"""What a watcher is told of a layer once it is finished: its error before and after, at a pace that a page can take."""

from __future__ import annotations

from worker.quantizer.run.interface import Run

# Of networks with more layers only so many are told of, evenly spread: layers that another attempt has done are gone
# through in no time, and nobody tells more points of a curve apart.
MOST_TOLD = 256


def tell_layer(run: Run, stage: str, number: int, total: int, name: str, before: float, after: float) -> None:
    """Tell the figures of a finished layer, and in the log whose they are.

    Args:
        run: is told.
        stage: the method.
        number: of the layer, from 1, in the order of the network.
        total: how many layers there are.
        name: of the layer.
        before: mean squared error of its output, before.
        after: the same with what was found.
    """
    if number * MOST_TOLD // total == (number - 1) * MOST_TOLD // total:
        return
    left = 100.0 * after / before if before > 0.0 else None
    run.metric(stage, number, {"error_before": before, "error_after": after, "error_left_percent": left})
    share = "" if left is None else f", {left:.3g} % of it left"
    run.log(f"{stage}, layer {number} of {total}, {name}: error {before:.3g} -> {after:.3g}{share}")
