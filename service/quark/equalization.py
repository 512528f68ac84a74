"""Translates Quark's cross-layer equalization, SmoothQuant and bias correction."""

from __future__ import annotations

from typing import Any

from service.quark.draft import Given, QuarkDraft, QuarkStep
from service.quark.option import B, F, I, Option, S, Setting, choice, setting

CLE, SMOOTH_QUANT, BIAS_CORRECTION = "cross_layer_equalization", "smooth_quant", "bias_correction"


_balance = choice(("max",), "must be max, the only method (in Quark too)")
CLE_SETTINGS = (
    setting("CLESteps", "cle_steps", I, 1, "steps", "a single step is far from convergence; -1 runs until convergence"),
    setting("CLEScaleAppendBias", "cle_scale_append_bias", B, True, "scale_append_bias"),
    setting("CLEBalanceMethod", "cle_balance_method", S, "max", "balance_method", convert=_balance),
    setting("CLEWeightThreshold", "cle_weight_threshold", F, 0.5, "weight_threshold"),
    setting("CLEScaleUseThreshold", "cle_scale_use_threshold", B, True, "scale_use_threshold"),
    setting("CLETotalLayerDiffThreshold", "cle_total_layer_diff_threshold", F, 1.9e-7, "total_layer_diff_threshold"),
)
SMOOTH_SETTINGS = (setting("SmoothAlpha", "alpha", F, 0.5, "alpha"),)

# The parameters of each algorithm.
PARAMETERS: dict[str, tuple[Setting, ...]] = {CLE: CLE_SETTINGS, SMOOTH_QUANT: SMOOTH_SETTINGS, BIAS_CORRECTION: ()}
_SWITCHES = {CLE: "include_cle", SMOOTH_QUANT: "include_sq", BIAS_CORRECTION: "BiasCorrection"}
_CLE_NOTE = (
    "cross_layer_equalization uses Quark's settings, with a single step if CLESteps is not given (-1 runs "
    "until nothing changes); here it also keeps activations within their ranges, and upper limits such as "
    "that of ReLU6."
)


def ask_for(draft: QuarkDraft, method: str, pointer: str) -> None:
    """Have the algorithm run, with what Quark takes where nothing is given."""
    if method in draft.steps:
        return
    settings = {one.ours: one.default for one in PARAMETERS[method]}
    if method == BIAS_CORRECTION:
        # Quark measures what is lost behind the activation function, on the quantized network's inputs.
        settings = {"mode": "full"}
    draft.steps[method] = QuarkStep(settings, pointer)
    if method == CLE:
        draft.note(pointer, _CLE_NOTE)


def switch(method: str) -> Any:
    """Apply a switch of Quark's: the algorithm runs, or does not."""

    def apply(draft: QuarkDraft, given: Given) -> None:
        if given.value:
            ask_for(draft, method, given.pointer)
        else:
            draft.steps.pop(method, None)
        draft.honour(given.pointer)

    return apply


def options(method: str) -> tuple[Option, ...]:
    """The parameters of an algorithm as extra options: without the algorithm they have no effect, in Quark and here."""
    return tuple(_option(method, one) for one in PARAMETERS[method])


def _option(method: str, one: Setting) -> Option:
    def apply(draft: QuarkDraft, given: Given) -> None:
        if method in draft.steps:
            one.apply(draft, method, given.name, given.value, given.pointer)
        else:
            draft.idle(given, one.default, f"has no effect without {_SWITCHES[method]}")

    ours = f"algorithms.{method}.{one.ours}"
    return Option(one.option, one.kind, one.default, one.verdict, ours, one.why, apply)
