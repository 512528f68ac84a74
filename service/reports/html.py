"""The report as one HTML page: no script, nothing loaded; verdict, cards, what to blame and what to try come first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from service.contracts.report import Advice, Histogram, LayerFigures, Report, by_contribution
from service.reports import algorithms, charts, figures, gains, layers, page_pictures, verdict
from service.reports.environment import abridged_json, environment_of
from service.reports.figures import name

MOST_BYTES = 1_900_000
SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
# The scale of the bars of SQNR: from there on a bar is full.
_FULL_BAR_DB = 50.0
_SEVERITIES = {"critical": ("Critical", "✖"), "warning": ("Warning", "▲"), "info": ("Info", "i")}


@dataclass(frozen=True)
class PageLimits:
    """How much of a large report stands on the page; JSON and CSV hold all of it."""

    rows: int
    names: int
    texts: int


# Of a page that is not kept within a number of bytes.
ON_SCREEN = PageLimits(400, 15, 40)
# Tried in turn until the page is small enough: names of strangers may be of any length, and layers any number.
_LIMITS = (PageLimits(1000, 40, 100), PageLimits(400, 15, 40), PageLimits(100, 5, 20), PageLimits(25, 3, 10))
_WORST = 12
_HISTOGRAMS = 8


def html(report: Report) -> str:
    """The page, below ``MOST_BYTES`` of UTF-8."""
    page = ""
    for limits in _LIMITS:
        told = {**context(report, limits), "policy": SECURITY_POLICY, "style": _style()}
        page = _environment().get_template("report.html.jinja").render(told)
        if len(page.encode()) <= MOST_BYTES:
            break
    return page


def parts(
    report: Report,
    try_it: Callable[[Advice], str | None],
    all_layers: str,
    node_address: Callable[[str], str | None],
) -> tuple[Markup, Markup]:
    """The verdict with the list of sections, and the sections, for a page with a style and a frame of its own.

    Args:
        report: to be shown.
        try_it: as for ``context``.
        all_layers: address at which the frame lists all layers.
        node_address: where the frame shows the layer of this name in the graph; None: nowhere.
    """
    told = {**context(report, ON_SCREEN, try_it), "all_layers": all_layers, "node_address": node_address}
    head, sections = (
        _environment().get_template(template).render(told) for template in ("head.html.jinja", "sections.html.jinja")
    )
    return Markup(head), Markup(sections)  # noqa: S704 - its templates have escaped what is not ours


@cache
def _environment() -> Environment:
    environment = environment_of(PackageLoader("service.reports"))
    environment.filters["json"] = abridged_json
    return environment


@cache
def _style() -> Markup:
    text = resources.files("service.reports").joinpath("templates/style.css").read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704 - a file of ours


def context(
    report: Report, limits: PageLimits, try_it: Callable[[Advice], str | None] = lambda _: None
) -> dict[str, Any]:
    """What the templates of the sections take, wherever they stand.

    Args:
        report: to be shown.
        limits: how much of it.
        try_it: the address where a piece of advice is put into a new job; None: there is none.
    """
    quantized = by_contribution(report.layers)
    config = report.manifest.config.model_dump(mode="json", exclude_defaults=False)
    return {
        "report": report,
        "limits": limits,
        "count": figures.count,
        "sentence": verdict.sentence,
        "headline": verdict.headline(report),
        "severities": _SEVERITIES,
        "cards": gains.cards(report),
        "blame": verdict.blame(report),
        "first_advice": verdict.first_advice(report),
        "conditions": [
            (condition, page_pictures.gate_scale(condition.clause, report)) for condition in verdict.conditions(report)
        ],
        "fallback": None if report.fallback is None else algorithms.FallbackWords.of(report.fallback),
        "kernels": None if report.kernels is None else algorithms.KernelWords.of(report.kernels),
        "metrics": [page_pictures.metric_row(metric, report.fidelity.samples) for metric in report.metrics],
        "speed": page_pictures.speed_chart(report.latency),
        "source": gains.source_words(report),
        "interval_words": verdict.interval_words,
        "layers": quantized,
        "has": {
            "weights": any(layer.weight_bytes is not None for layer in quantized),
            "blame": any(layer.error_percent is not None for layer in quantized),
            "time": any(layer.latency_percent is not None for layer in quantized),
            "gains": any(layers.gain_words(layer) for layer in quantized),
        },
        "most_error": max((layer.error_percent or 0.0 for layer in quantized), default=0.0),
        "worst": _WORST,
        "sqnr_bar": lambda layer: charts.bar((layer.sqnr_db or 0.0) / _FULL_BAR_DB),
        "share_bar": lambda value, whole: charts.bar(value / whole if whole else 0.0),
        "storage_words": layers.storage_words,
        "gain_words": layers.gain_words,
        "drawings": _drawings(quantized),
        "coverage": layers.coverage(report),
        "float_parts": (
            ("Nodes in float", layers.left_in_float(report)),
            ("Activations in float (nodes with quantized weights)", layers.float_activations(report)),
            ("Biases in float (nodes with quantized weights)", layers.float_biases(report)),
        ),
        "try_it": try_it,
        "all_layers": "",
        "node_address": lambda _: None,
        "widths": algorithms.widths(report),
        "waterfalls": page_pictures.waterfalls(report),
        "range_picture": page_pictures.range_picture,
        "algorithms": [algorithms.algorithm_row(entry, limits.names) for entry in report.algorithms],
        "range_words": algorithms.range_words,
        "config": abridged_json(config),
        "seconds": sum(stage.seconds for stage in report.stages),
        "peak": max((stage.peak_rss_bytes for stage in report.stages), default=0),
    }


def _drawings(quantized: list[LayerFigures]) -> list[tuple[LayerFigures, list[tuple[str, Histogram, Markup]]]]:
    """Histograms of the first layers that have some."""
    found = []
    for layer in quantized:
        parts = (("Weights", layer.weight_histogram), ("Activations", layer.activation_histogram))
        drawn = [
            (what, values, charts.histogram(values, f"{what} of {name(layer.name)}: counts of values"))
            for what, values in parts
            if values is not None
        ]
        if drawn:
            found.append((layer, drawn))
        if len(found) == _HISTOGRAMS:
            break
    return found
