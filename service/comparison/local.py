"""Report files side by side, without a service: figures, configs and layers, but nothing by sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from service.comparison.differences import differences, differing_layers
from service.comparison.evidence import compared_report, figures_of
from service.comparison.schemas import MOST_LAYERS, ComparedJob, ComparedPair, Comparison
from service.contracts.report import Report

_UNPAIRED = "no prediction flips and no p-value: report files have no results by sample, jobs of a service have"
_OTHER_DATA = "measured on other data than the first report: their figures cannot be compared"


def compare_reports(reports: Sequence[tuple[Path, Report]]) -> Comparison:
    """Compare reports of quantizations; the first is what the others are held against."""
    told = [compared_report(report) for _, report in reports]
    layers = differing_layers([one.layers for one in told])
    names = [str(path) for path, _ in reports]
    configs = [report.manifest.config.model_dump(mode="json") for _, report in reports]
    return Comparison(
        jobs=tuple(_job(path, report) for path, report in reports),
        config_differences=tuple(differences(configs)),
        pairs=tuple(
            ComparedPair(
                first=names[0],
                second=name,
                measure=None,
                reason=_UNPAIRED if one.measured_on == told[0].measured_on else _OTHER_DATA,
            )
            for name, one in zip(names[1:], told[1:], strict=True)
        ),
        layers=tuple(layers[:MOST_LAYERS]),
        layers_more=max(0, len(layers) - MOST_LAYERS),
    )


def _job(path: Path, report: Report) -> ComparedJob:
    config = report.manifest.config
    return ComparedJob(
        id=str(path),
        name=None,
        labels={},
        model_id=None,
        model=None,
        preset=config.preset,
        algorithms=tuple(algorithm.method for algorithm in config.algorithms),
        seconds=sum(stage.seconds for stage in report.stages),
        **figures_of(compared_report(report)),
    )
