"""Reports for tests of what is made of them: one with every field set, hostile ones, very large ones."""

from __future__ import annotations

import math
from typing import Any

from service.contracts.config import parse_config
from service.contracts.report import Histogram, Report

SCRIPT = "<script>alert(1)</script>"
PICTURE = '"><img src=x onerror=alert(1)>'
HOSTILE = (
    SCRIPT, PICTURE, "]]><x/>", "</title></style></svg><script>alert(1)</script>", "\u202egnp.\u2066evil",
    "a\nb\r\tc\x00d\x1b[31m", "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "{{ 7*7 }}{% raw %}",
    "a|b`c``d<e>&amp;[f](http://g.example)", "javascript:alert(1)", "n" * 5000, "\ud800", "' onload='alert(1)",
)  # fmt: skip


def interval(low: float, high: float, method: str = "mcnemar", samples: int = 438) -> dict[str, Any]:
    return {"low": low, "high": high, "method": method, "samples": samples}


def bell(low: float, high: float, *, clip_low: float | None, clip_high: float | None) -> Histogram:
    """64 bins of a normal distribution."""
    counts = tuple(int(20000 * math.exp(-((k - 31.5) ** 2) / 120)) for k in range(64))
    return Histogram(
        minimum=low, maximum=high, counts=counts, clip_low=clip_low, clip_high=clip_high, clipped_percent=0.125
    )


def layer(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "op": "Conv", "nodes": [name], **facts}


def full_report(**changes: Any) -> Report:
    """Every field of the contract set to something that can be told apart from all others."""
    return Report.model_validate(full_document(**changes))


# fmt: off
def full_document(**changes: Any) -> dict[str, Any]:
    """``full_report`` before it is checked."""
    gate = {"max_drop": 1.0, "max_size_bytes": 4_000_000, "max_latency_ratio": 0.8, "confidence": 0.95}
    config = parse_config({"preset": "int8", "evaluation": {"gate": gate}}).model_dump(mode="json")
    return {
        "verdict": "fail", "gate": _gate(), "findings": _findings(), "causes": _causes(), "advice": _advice(),
        "fallback": _fallback(), "kernels": _kernels(),
        "summary": "top-1 86.07 -> 85.62 %, SQNR 21.4 dB, 3.75x smaller; 56 of 57 nodes quantized.",
        "float": {
            "metrics": {"top1": 86.07, "rmse": 1.5}, "metric_details": {"top1": {"class 3": 91.25}},
            "size_bytes": 10_438_090, "latency_ms": 11.0,
        },
        "quantized": {
            "metrics": {"top1": 85.62, "rmse": 1.625}, "metric_details": {"top1": {"class 3": 88.75}},
            "size_bytes": 2_781_034, "latency_ms": 8.8,
        },
        "metrics": _metrics(),
        "fidelity": {
            "sqnr_db": 21.4, "cosine": 0.99637, "top1_agreement": 95.43,
            "sqnr_interval_db": interval(20.9, 21.8, "bootstrap"),
            "top1_agreement_interval": interval(93.0, 97.1, "wilson"), "samples": 438, "source": "evaluation",
            "outputs": [{"name": "scores", "sqnr_db": 21.4, "cosine": 0.99637, "top1_agreement": 95.43}],
        },
        "latency": {
            "float_ms": 11.0, "quantized_ms": 8.8, "float_interval_ms": interval(10.7, 11.4, "order_statistics", 40),
            "quantized_interval_ms": interval(8.1, 9.9, "order_statistics", 40), "ratio": 0.8,
            "ratio_interval": interval(0.72, 0.91, "order_statistics", 40), "verdict": "faster", "runs": 40,
            "batch_size": 1, "threads": 2, "load": {"cpu_count": 2, "load_average": 3.5, "other_busy_percent": 61.0},
        },
        "layers": _layers(),
        "preparation": [
            {"name": "fold_affine", "applied": True, "detail": "27 nodes folded into the linear node before them"},
            {"name": "fuse_gelu", "applied": False, "detail": "the opset is too old", "reason_code": "nodes-stay"},
        ],
        "algorithms": _algorithms(), "notes": ["weight scales raised so that the int32 bias fits"],
        "tensor_ranges": {"x": {"minimum": -1.0, "maximum": 1.0}},
        "stages": [
            {"name": "load", "seconds": 1.5, "peak_rss_bytes": 230_000_000},
            {"name": "evaluation", "seconds": 13.25, "peak_rss_bytes": 520_000_000},
        ],
        "manifest": {
            "engine_version": "0.1.0", "model_sha256": "9d" * 32, "calibration_sha256": "34" * 32,
            "evaluation_sha256": "55" * 32, "output_sha256": "aa" * 32, "config": config, "seed": 7,
            "versions": {"onnxruntime": "1.31.1"}, "threads": 2,
        },
        **changes,
    }


def search_document() -> dict[str, Any]:
    """Of a search that has tried two recipes and took the second."""
    config = parse_config({"algorithms": [{"method": "autopilot"}]}).model_dump(mode="json")
    trial = {"settings": {}, "algorithms": [], "sqnr_db": 20.0, "evaluated": True, "seconds": 1.0, "size_bytes": 900}
    better = {
        "name": "mse: bias", "settings": {"activation": {"calibration": {"method": "mse"}}},
        "algorithms": ["bias_correction"], "chain": [{"method": "bias_correction", "mode": "full"}],
        **{"value": 0.2, "gap": -0.3, "latency_ratio": 0.6, "pareto": True, "chosen": True},
    }
    trials = [{**trial, "name": "as configured", "value": 0.9, "gap": 0.4, "latency_ratio": 0.5}, {**trial, **better}]
    goal = {"kind": "drop", "metric": "top1", "max_drop": 0.5}
    search = {"goal": goal, "met": True, "goal_met": True, "gap": -0.3, "ended_by": "all done", "trials": trials}
    document = full_document()
    document["algorithms"] = [{"method": "autopilot", "kept": True, "summary": "done", "search": search}]
    document["manifest"]["config"] = config
    return document


def hostile_document() -> dict[str, Any]:
    """Every text of the full document, and every key that a model or a user may choose, is an attack."""
    document = full_document()
    document["layers"] = [
        layer(name, op=name[:200], sqnr_db=float(k), nodes=[name, *HOSTILE], gain={name: 1.5}, reason=None)
        for k, name in enumerate(HOSTILE)
    ] + [layer(name, op=name[:200], reason=name, reason_code="x", activation_reason=name) for name in HOSTILE]
    document["notes"] = list(HOSTILE)
    document["summary"] = " ".join(HOSTILE[:5])
    document["findings"] = [
        {"code": "x-y", "severity": "critical", "message": name, "hint": name, "where": {name: name}}
        for name in HOSTILE
    ]
    document["causes"] = [
        {
            "kind": "x-y", "message": name, "error_percent": 5.0,
            "places": [{"node": name, "error_percent": 5.0, "fact": name}],
        }
        for name in HOSTILE
    ]
    document["advice"] = [
        {
            "code": "x-y", "because": name, "message": name, "config": {"note": name, name: [name]}, "nodes": [name],
            "status": "tried", "helped": False,
            "figure": {"metric": name, "unit": name, "before": 1.0, "after": 2.0, "samples": 3, "seconds": 4.0},
        }
        for name in HOSTILE
    ]
    document["preparation"] = [{"name": name, "applied": True, "detail": name} for name in HOSTILE]
    document["stages"] = [{"name": name, "seconds": 1.0, "peak_rss_bytes": 5} for name in HOSTILE]
    document["gate"] = [
        {"clause": name, "metric": name, "wanted": 1.0, "got": 0.5, "holds": None, "why": name} for name in HOSTILE
    ]
    document["metrics"] = [
        {"name": name, "kind": name, "unit": name, "better": "higher", "float": 2.0, "quantized": 1.0, "drop": 1.0,
         "quantized_interval": interval(0.5, 1.5)}
        for name in HOSTILE
    ]
    for model in ("float", "quantized"):
        document[model]["metric_details"] = {name: {name: 1.0} for name in HOSTILE}
    document["fidelity"]["outputs"] = [
        {"name": name, "sqnr_db": 1.0, "cosine": 0.5, "top1_agreement": None} for name in HOSTILE
    ]
    document["fallback"] |= {"because": PICTURE, "reason": SCRIPT, "why_no_regions": PICTURE}
    document["kernels"] |= {"forms": [], "reason": PICTURE}
    document["manifest"]["versions"] = {name: name for name in HOSTILE}
    for entry in document["algorithms"]:
        entry["method"] = entry["summary"] = PICTURE
    return document
# fmt: on


def large_report(count: int, name_characters: int = 40) -> Report:
    """So many layers with everything that a layer may have."""
    weights = bell(-1, 1, clip_low=-0.9, clip_high=0.9).model_dump()
    activations = bell(0, 6, clip_low=0, clip_high=5.5).model_dump()
    facts = {"weight_dtype": "int8", "activation_dtype": "uint8", "weight_bytes": 1000, "float_weight_bytes": 4000}
    facts |= {"latency_percent": 0.1, "gain": {"adaround": 1.5}}
    facts |= {"weight_histogram": weights, "activation_histogram": activations}
    rows = [layer(f"{k}".ljust(name_characters, "/"), sqnr_db=k / 10, **facts) for k in range(count)]
    left = [layer(f"float {k}", reason="no integer kernel", reason_code="no-integer-kernel") for k in range(count)]
    return full_report(layers=[*rows, *left])


# fmt: off
def _fallback() -> dict[str, Any]:
    clause = {"clause": "max_drop", "metric": "top1", "wanted": 1.0, "got": 0.25, "holds": True}
    float_ = {"kind": "float", "nodes_taken_off": 33, "size_bytes": 9_000_000, "latency_ratio": 1.0, "holds": None}
    reduced = {"kind": "reduced", "nodes_taken_off": 17, "size_bytes": 3_300_000, "latency_ratio": 0.77}
    planned = {"kind": "planned", "nodes_taken_off": 0, "size_bytes": 2_900_000, "latency_ratio": 1.31, "holds": False}
    region = {"kind": "elementwise", "nodes": ["/add"], "ratio": 0.9, "ratio_interval": interval(0.85, 0.95)}
    return {
        "because": "the quantized model breaks max_latency_ratio 0.8: latency ratio 1.31",
        "reason": "the quantized model is returned without 17 pairs",
        "candidates": [
            {**planned, "gate": [clause]},
            {**reduced, "gate": [clause], "holds": True, "chosen": True, "latency_interval": interval(0.73, 0.79)},
            float_,
        ],
        "regions": [{**region, "outcome": "taken_off"}, {"kind": "region", "nodes": ["/mul"], "outcome": "untried"}],
        "seconds": 12.5,
    }


def _kernels() -> dict[str, Any]:
    figures = {"float_ms": 4.0, "ratio_interval": interval(0.4, 0.6), "samples": 16}
    standard = {**figures, "form": "standard", "emitted": True, "latency_ms": 1.75, "ratio": 0.44, "sqnr_db": 27.25}
    fused = {**figures, "form": "matmul_nbits", "emitted": False, "latency_ms": 2.25, "ratio": 0.56, "sqnr_db": 29.5}
    return {"products": 14, "forms": [standard, {**fused, "accuracy_level": 4}]}


def _gate() -> list[dict[str, Any]]:
    return [
        {
            "clause": "max_drop", "metric": "top1", "wanted": 1.0, "got": 0.4566, "holds": None,
            "interval": interval(-1.1, 2.0), "confidence": 0.95, "samples_needed": 5200,
            "why": "The interval of the drop holds the limit.",
        },
        {"clause": "max_size_bytes", "wanted": 4_000_000, "got": 2_781_034, "holds": True},
        {"clause": "max_latency_ratio", "wanted": 0.8, "got": 0.95, "holds": False, "interval": interval(0.9, 1.02)},
        {"clause": "min_sqnr_db", "wanted": 20.0, "got": 21.4, "holds": True},
    ]


def _findings() -> list[dict[str, Any]]:
    return [
        {
            "code": "float-model-at-chance", "severity": "critical",
            "message": "The float model reaches 10.2 %, guessing would reach 10 %.",
            "hint": "Check the preprocessing.", "where": {"metric": "top1", "index": 0}, "undermines_verdict": True,
        },
        {
            "code": "few-samples", "severity": "warning",
            "message": "438 samples: differences below 2 points are chance.", "hint": "Give more.",
        },
        {"code": "same-samples", "severity": "info", "message": "12 samples stand in both datasets."},
    ]


def _advice() -> list[dict[str, Any]]:
    figure = {"metric": "top1", "unit": "%", "before": 85.62, "after": 86.01, "samples": 438, "seconds": 12.5}
    return [
        {
            "code": "exclude-layers", "because": "Two layers fall by 9 dB.",
            "message": "Keep the two worst layers in float.", "config": {"exclude": ["/features/0", "/classifier"]},
            "nodes": ["/features/0", "/classifier"], "status": "tried", "helped": True, "figure": figure,
        },
        {
            "code": "more-samples", "because": "The interval is 3 points wide.",
            "message": "Evaluate on more samples.", "config": {}, "status": "untried",
        },
    ]


def _metrics() -> list[dict[str, Any]]:
    return [
        {
            "name": "top1", "kind": "top1", "unit": "%", "better": "higher", "float": 86.07, "quantized": 85.62,
            "drop": 0.4566, "samples": 438, "float_interval": interval(82.5, 89.0, "wilson"),
            "quantized_interval": interval(82.0, 88.6, "wilson"), "drop_interval": interval(-1.1, 2.0),
            "p_value": 0.73, "flips": {"lost": 5, "won": 3, "confident": 2}, "chance": 0.1,
        },
        {
            "name": "rmse", "kind": "rmse", "unit": "", "better": "lower", "float": 1.5, "quantized": 1.625,
            "drop": 0.125, "drop_interval": interval(0.1, 0.15, "bootstrap"),
        },
    ]


def _layers() -> list[dict[str, Any]]:
    return [
        layer(
            "/features/0",
            nodes=["/features/0", "/features/1"],
            weight_dtype="int8",
            activation_dtype="uint8",
            sqnr_db=12.5,
            gain={"adaround": 3.25},
            weight_bytes=864,
            float_weight_bytes=3456,
            latency_percent=18.5,
            error_percent=61.25,
            weight_histogram=bell(-1.5, 1.5, clip_low=-1.25, clip_high=1.25).model_dump(),
            activation_histogram=bell(0, 9, clip_low=0, clip_high=6).model_dump(),
        ),
        layer(
            "/features/2",
            weight_dtype="int8",
            sqnr_db=25.0,
            activation_reason="its input is constant",
            activation_reason_code="constant-input",
            bias_reason="its scale is too small",
            bias_reason_code="bias-scale",
        ),
        layer("/softmax", op="Softmax", reason="its output needs more than 8 bits near 0", reason_code="softmax-range"),
        layer("/shape", op="Shape", reason="not applicable: its result is int64", reason_code="not-applicable"),
    ]


def _algorithms() -> list[dict[str, Any]]:
    epochs = [
        {
            "epoch": k, "steps": 100 * k, "train_loss": 0.9 - 0.1 * k if k else None,
            "validation_loss": 1.0 - 0.15 * k + 0.03 * k * k, "metric": 84.0 + k, "learning_rate": 1e-4,
            "oscillating": 0.01, "frozen": 0.002,
        }
        for k in range(5)
    ]
    ranges = {"before": {"minimum": -8.0, "maximum": 8.0}, "after": {"minimum": -2.0, "maximum": 2.0}}
    trial = {"name": "int8 + adaround", "settings": {}, "algorithms": ["adaround"], "sqnr_db": 22.0, "evaluated": True,
             "value": 0.3, "size_bytes": 2_781_034, "latency_ratio": 0.8, "pareto": True, "chosen": True,
             "seconds": 31.0}
    return [
        {
            "method": "adaround", "kept": True, "summary": "24 layers rounded anew",
            "before": {"sqnr_db": 19.0, "value": 84.5}, "after": {"sqnr_db": 21.5, "value": 85.5}, "samples": 64,
            "nodes": 24, "reconstruction": {"/features/0": {"before": 0.5, "after": 0.125}},
        },
        {
            "method": "cross_layer_equalization", "kept": False, "summary": "it made the network worse",
            "reason_code": "made-worse",
            "ranges": [{"tensor": "w0", "kind": "weight", **ranges, "spread_before": 12.0, "spread_after": 1.5}],
        },
        {
            "method": "qat", "kept": True, "summary": "trained for 4 epochs",
            "training": {
                "epochs": epochs, "best_epoch": 3, "metric": "top1", "samples": 1000, "validation_samples": 100,
                "learning_rate": 1e-4, "device": "cpu", "ended": "patience",
            },
        },
        {
            "method": "autopilot", "kept": True, "summary": "the recipe int8 + adaround",
            "search": {"goal": {"kind": "drop"}, "met": True, "goal_met": True, "gap": -0.7,
                       "ended_by": "everything was tried.", "trials": [trial]},
        },
    ]


def _causes() -> list[dict[str, Any]]:
    """Two causes: one of layers, and one of the whole network."""
    fact = "the widest channel is 75 times the median one, error 32 % of the signal"
    spread = [{"node": f"/features/{2 * k}", "error_percent": 40.0 - k, "fact": fact} for k in range(8)]
    return [
        {
            "kind": "channel-spread", "message": "one scale serves channels of a weight that differ much in size",
            "error_percent": 91.5, "places": spread, "places_left_out": 3,
        },
        {
            "kind": "saturation", "message": "this host's CPU adds products of 8 bits in 16 bits, which overflows",
            "error_percent": 8.5,
            "places": [{"node": "", "error_percent": 8.5, "fact": "SQNR 12.0 dB here, 21.4 dB where it does not"}],
        },
    ]
# fmt: on
