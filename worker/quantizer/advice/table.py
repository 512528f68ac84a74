"""The table: causes of error -> edits of a config that take them away.

An edit sees a config as a JSON document and returns the changed one, or None where there is nothing to change. What a
target makes of it is judged elsewhere (``fitting``): a rule here need not know every target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from service.contracts.algorithms.union import ALGORITHMS
from service.contracts.specs import bits_of, is_integer
from service.contracts.targets import TARGET_OPTIONS
from worker.quantizer.advice.damage import Damage, HarmKind
from worker.quantizer.plan.targets import TARGETS

Document = dict[str, Any]

_CORRECTION = {"method": "bias_correction", "mode": "full"}
_OUTLIERS = {"method": "outlier_channels"}
_ROUNDING = ("adaround", "adaquant")
_SEARCHES = ("autopilot", "mixed_precision", "qat")
_PERCENTILE = 99.99
_SEVEN_BITS = "x86_without_vnni"
# Layers that are left in float, and the share of all noise that they must hold together to be worth it.
_MOST_EXCLUDED, _EXCLUDED_PART, _WORTH = 8, 0.1, 0.3


@dataclass(frozen=True)
class AdviceContext:
    """What an edit may look at."""

    target: str  # name
    damage: Damage  # of the network
    sqnr_db: float | None = None  # of its outputs; None: they are lost

    @property
    def whole(self) -> bool:
        """True if the target wants the whole network in integers."""
        return TARGETS[self.target].whole


@dataclass(frozen=True)
class AdviceRule:
    """A piece of advice."""

    code: str  # stable
    message: str  # what to do, in one sentence
    treats: Mapping[HarmKind, float]  # share of each cause that it takes away, about: what comes first is guessed by it
    # (config, setting) -> changed config; None: nothing to change, or it does not suit the target
    edit: Callable[[Document, AdviceContext], Document | None]
    by_hand: bool = False  # what it asks for is no setting: the config stays as it is
    dear: bool = False  # the model gets larger or slower by it, so that it goes together with nothing else
    cost: float = 0.0  # seconds in multiples of a pass over the calibration data, about, on top of quantizing as before


def _equalize(document: Document, setting: AdviceContext) -> Document | None:
    if document["mode"] != "static" or _has(document, *_SEARCHES):
        return None
    kept = _without(document, "cross_layer_equalization")
    if "activation" not in setting.damage.outliers:
        kept = [entry for entry in kept if entry != _OUTLIERS]  # advised before: equalization balances weights
    listed = (entry for entry in _listed(document) if entry["method"] == "cross_layer_equalization")
    judged = {key: value for key, value in next(listed, {}).items() if key == "accept"}
    made = _in_order([{"method": "cross_layer_equalization", **judged}, *kept])
    return _corrected({**document, "algorithms": made}) or {**document, "algorithms": made}


def _correct(document: Document, setting: AdviceContext) -> Document | None:
    return None if document["mode"] != "static" or _has(document, *_SEARCHES) else _corrected(document)


def _corrected(document: Document) -> Document | None:
    """With bias correction on the quantized network; AdaRound and AdaQuant let biases follow by themselves."""
    full = any(entry["method"] == "bias_correction" and entry.get("mode") == "full" for entry in _listed(document))
    if full or _has(document, *_ROUNDING):
        return None
    made = _in_order([*_without(document, "bias_correction"), _CORRECTION])
    return {**document, "algorithms": made}


def _round_well(document: Document, setting: AdviceContext) -> Document | None:
    if document["mode"] != "static" or _has(document, *_SEARCHES, *_ROUNDING):
        return None
    spec = document["weight"]
    if is_integer(spec["dtype"]):
        made = {"method": "adaround", "scale_refit": spec["scale"] == "power_of_two"}
    else:
        made = {"method": "adaquant"}
    return {**document, "algorithms": _in_order([*_without(document, "bias_correction", *_ROUNDING), made])}


def _smooth(document: Document, setting: AdviceContext) -> Document | None:
    if document["mode"] != "static" or _has(document, "smooth_quant", *_SEARCHES):
        return None
    # A Mul in float between integers is no way for a target that runs nothing else.
    made = {"method": "smooth_quant", **({"insert_mul": False} if setting.whole else {})}
    return {**document, "algorithms": _in_order([made, *_listed(document)])}


def _treat_outliers(document: Document, setting: AdviceContext) -> Document | None:
    if document["mode"] != "static" or _has(document, "outlier_channels", *_SEARCHES):
        return None
    # channels of weights are left to equalization where there is one
    treated = {"activation"} if _has(document, "cross_layer_equalization") else {"activation", "weight"}
    if not treated & setting.damage.outliers:
        return None
    return {**document, "algorithms": _in_order([_OUTLIERS, *_listed(document)])}


def _keep_function(document: Document, setting: AdviceContext) -> Document | None:
    listed = [
        {**entry, "replace_relu6": "auto"} if entry.get("replace_relu6") == "relu" else entry
        for entry in _listed(document)
    ]
    preparation = {**document["preparation"], "clip6_to_relu": False}
    return {**document, "preparation": preparation, "algorithms": listed}


def _seven_bits(document: Document, setting: AdviceContext) -> Document | None:
    options = document["target_options"]
    if all(option.name != _SEVEN_BITS for option in TARGET_OPTIONS[setting.target]) or options.get(_SEVEN_BITS):
        return None
    return {**document, "target_options": {**options, _SEVEN_BITS: True}}


def _per_channel(document: Document, setting: AdviceContext) -> Document | None:
    return _weight(document, granularity="per_channel")


def _wider_weights(document: Document, setting: AdviceContext) -> Document | None:
    spec = document["weight"]
    if bits_of(spec["dtype"]) >= 8:
        return None
    unsigned = spec["dtype"].startswith("uint")
    return _weight(document, dtype="uint8" if unsigned else "int8")


def _searched_weights(document: Document, setting: AdviceContext) -> Document | None:
    if not is_integer(document["weight"]["dtype"]):
        return None
    return _weight(document, calibration={"method": "mse"})


def _searched_ranges(document: Document, setting: AdviceContext) -> Document | None:
    return _calibrated(document, {"method": "mse"})


def _cut_ranges(document: Document, setting: AdviceContext) -> Document | None:
    now = document["activation"]["calibration"]
    if now["method"] == "percentile" and now["percentile"] <= _PERCENTILE:
        return None
    return _calibrated(document, {"method": "percentile", "percentile": _PERCENTILE})


def _whole_ranges(document: Document, setting: AdviceContext) -> Document | None:
    shifted = document["activation"]["scale"] == "power_of_two"
    return _calibrated(document, {"method": "non_overflow" if shifted else "minmax"})


def _calibrated(document: Document, calibration: Document) -> Document | None:
    spec = document["activation"]
    integers = document["mode"] == "static" and is_integer(spec["dtype"])
    if not integers or (spec["calibration"]["method"] == calibration["method"] == "mse"):
        return None
    rest = {**document, "tensor_ranges": {}}  # supplied ranges would win over calibrated ones
    return {**rest, "activation": {**spec, "calibration": calibration}}


def _wider_activations(document: Document, setting: AdviceContext) -> Document | None:
    spec = document["activation"]
    if document["mode"] != "static" or bits_of(spec["dtype"]) >= 16:
        return None
    if bits_of(spec["dtype"]) < 8:
        return {**document, "activation": {**spec, "dtype": "int8" if spec["symmetric"] else "uint8"}}
    return {**document, "activation": {**spec, "dtype": "int16", "symmetric": True}}


def _wider_biases(document: Document, setting: AdviceContext) -> Document | None:
    return None if document["bias"]["dtype"] not in ("int8", "int16") else {**document, "bias": {"dtype": "int32"}}


def _worst_in_float(document: Document, setting: AdviceContext) -> Document | None:
    worst = worst_layers(setting.damage)
    if setting.whole or document["mode"] == "float16" or not worst or document["include"]:
        return None
    named = [{"node": name} for name in worst]
    return {**document, "exclude": [*document["exclude"], *named]}


def _mixed(document: Document, setting: AdviceContext) -> Document | None:
    if setting.whole or document["mode"] != "static" or _has(document, *_SEARCHES, *_ROUNDING):
        return None
    high = {"activation": "float32", "weight": "float32"}
    low = {"activation": document["activation"], "weight": document["weight"]}
    if not (is_integer(document["activation"]["dtype"]) and is_integer(document["weight"]["dtype"])):
        return None
    goal = {"kind": "distance", "metric": "sqnr", "limit": max(_GOAL_DB, math.ceil(setting.sqnr_db or 0.0) + _GAIN_DB)}
    mixed = {"method": "mixed_precision", "high": high, "low": low, "optimize": "quality", "goal": goal}
    return {**document, "algorithms": _in_order([*_without(document, *_ROUNDING), mixed])}


def _more_data(document: Document, setting: AdviceContext) -> Document | None:
    whole = document["activation"]["calibration"]["method"] in ("minmax", "non_overflow")
    return document if document["mode"] == "static" and whole else None


# What few layers in float are to reach at least, and to gain at least.
_GOAL_DB, _GAIN_DB = 15.0, 6.0
_ACTIVATIONS = (
    HarmKind.OUTLIERS,
    HarmKind.MAP_CHANNELS,
    HarmKind.PRODUCT_CHANNELS,
    HarmKind.ACTIVATION_ROUNDING,
)

RULES: tuple[AdviceRule, ...] = (
    AdviceRule(
        "keep-function",
        "Keep the limit of ReLU6: without it the network computes another function.",
        {HarmKind.OTHER_FUNCTION: 1.0},
        _keep_function,
    ),
    AdviceRule(
        "seven-bit-weights",
        (
            "Use 7 bits of int8 weights: on x86 CPUs without VNNI their products do not overflow; other CPUs "
            "lose one bit."
        ),
        {HarmKind.SATURATION: 1.0},
        _seven_bits,
    ),
    AdviceRule(
        "equalize",
        "Equalize the channels of neighboring layers, prune dead channels, and correct biases.",
        {HarmKind.CHANNEL_SPREAD: 0.8, HarmKind.MAP_CHANNELS: 0.3, HarmKind.BIAS_GRID: 0.6},
        _equalize,
        cost=4.0,
    ),
    AdviceRule(
        "per-channel-weights",
        "Use one scale per output channel of weights.",
        {HarmKind.CHANNEL_SPREAD: 1.0},
        _per_channel,
    ),
    AdviceRule(
        "correct-biases",
        "Correct the biases on the quantized network, layer by layer.",
        {
            HarmKind.CHANNEL_SPREAD: 0.5,
            HarmKind.WEIGHT_ROUNDING: 0.3,
            HarmKind.BIAS_GRID: 0.6,
            HarmKind.OUTLIERS: 0.1,
        },
        _correct,
        cost=2.5,
    ),
    AdviceRule(
        "round-by-reconstruction",
        "Use AdaRound (layer-wise reconstruction) with bias correction.",
        {HarmKind.WEIGHT_ROUNDING: 0.7, HarmKind.BIAS_GRID: 0.6, HarmKind.CHANNEL_SPREAD: 0.6},
        _round_well,
        cost=12.0,
    ),
    AdviceRule("wider-biases", "Use 32-bit biases.", {HarmKind.BIAS_GRID: 1.0}, _wider_biases),
    AdviceRule("wider-weights", "Use 8-bit weights.", {HarmKind.WEIGHT_ROUNDING: 1.0}, _wider_weights, dear=True),
    AdviceRule(
        "searched-weight-ranges",
        "Calibrate weight ranges by mean squared error.",
        {HarmKind.WEIGHT_ROUNDING: 0.4, HarmKind.CHANNEL_SPREAD: 0.1},
        _searched_weights,
    ),
    AdviceRule(
        "searched-ranges",
        "Calibrate activation ranges by mean squared error, which clips outliers.",
        {HarmKind.OUTLIERS: 0.7, HarmKind.CLIPPING: 0.3},
        _searched_ranges,
    ),
    AdviceRule(
        "cut-ranges",
        f"Calibrate activation ranges by percentile ({_PERCENTILE} %), which clips outliers.",
        {HarmKind.OUTLIERS: 0.8},
        _cut_ranges,
    ),
    AdviceRule(
        "whole-ranges",
        "Calibrate activation ranges by minimum and maximum.",
        {HarmKind.CLIPPING: 1.0},
        _whole_ranges,
    ),
    AdviceRule(
        "smooth-products",
        "Move scale from activations into weights of matrix products (SmoothQuant).",
        {HarmKind.PRODUCT_CHANNELS: 0.8},
        _smooth,
        cost=3.0,
    ),
    AdviceRule(
        "treat-outlier-channels",
        "Treat outlier channels that set the range of a tensor: scale them down, split them, or use 16 "
        "bits, whichever the samples favor.",
        {HarmKind.MAP_CHANNELS: 0.8, HarmKind.PRODUCT_CHANNELS: 0.7, HarmKind.CHANNEL_SPREAD: 0.5},
        _treat_outliers,
        cost=8.0,
    ),
    AdviceRule(
        "wider-activations",
        "Use twice as many bits for activations.",
        dict.fromkeys(_ACTIVATIONS, 1.0),
        _wider_activations,
        dear=True,
    ),
    AdviceRule(
        "worst-in-float",
        "Leave the layers with the largest error contributions in float.",
        {},
        _worst_in_float,
        dear=True,
    ),
    AdviceRule(
        "mixed-precision",
        f"Leave as few layers in float as needed to gain {_GAIN_DB:g} dB and reach {_GOAL_DB:g} dB.",
        {kind: 0.9 for kind in HarmKind if kind is not HarmKind.OTHER_FUNCTION},
        _mixed,
        dear=True,
        cost=60.0,
    ),
    AdviceRule(
        "more-calibration-data",
        "Calibrate with more samples, or with samples that represent the real inputs better.",
        {HarmKind.CLIPPING: 0.5},
        _more_data,
        by_hand=True,
    ),
)


def relief(rule: AdviceRule, damage: Damage) -> float:
    """How much noise a rule takes away, as a guess."""
    if rule.code == "worst-in-float":
        return sum(damage.layers[name] for name in worst_layers(damage))
    return sum(share * damage.noise(kind) for kind, share in rule.treats.items())


def worst_layers(damage: Damage) -> list[str]:
    """The few layers that hold much of the noise, the worst first; none if it is spread over all."""
    ranked = sorted(damage.layers, key=lambda name: -damage.layers[name])
    most = max(1, min(_MOST_EXCLUDED, int(len(ranked) * _EXCLUDED_PART)))
    chosen = [name for name in ranked[:most] if damage.layers[name] > 0]
    total = sum(damage.layers.values())
    held = sum(damage.layers[name] for name in chosen)
    return chosen if len(ranked) > 1 and total > 0 and held >= _WORTH * total else []


def _weight(document: Document, **update: Any) -> Document | None:
    return {**document, "weight": {**document["weight"], **update}}


def _listed(document: Document) -> list[Document]:
    return list(document["algorithms"])


def _has(document: Document, *methods: str) -> bool:
    """True if one of them is run; what only a large loss calls for may have been left out."""
    return any(entry["method"] in methods and entry.get("when") != "large_loss" for entry in document["algorithms"])


def _without(document: Document, *methods: str) -> list[Document]:
    return [entry for entry in document["algorithms"] if entry["method"] not in methods]


def _in_order(entries: list[Document]) -> list[Document]:
    """Such that none undoes what another has done."""
    return sorted(entries, key=lambda entry: ALGORITHMS[entry["method"]].place)
