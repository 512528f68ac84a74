"""Reports of earlier versions are read as today's."""

from __future__ import annotations

from typing import Any

from service.contracts.report import REPORT_SCHEMA_VERSION, Report, upgraded
from tests.support.front import make_report

# What came later is not there.
TODAY = make_report("pass").to_json_dict()
OLD: dict[str, Any] = {
    **{
        name: TODAY[name] for name in ("summary", "float", "quantized", "fidelity", "preparation", "stages", "manifest")
    },
    "schema_version": 1,
    "verdict": "pass",
    "gate": [{"clause": "max_drop", "metric": "top1", "wanted": 1.0, "got": 0.5, "holds": True}],
    "metrics": [
        {"name": "top1", "kind": "top1", "unit": "%", "better": "higher", "float": 90.0, "quantized": 89.5, "drop": 0.5}
    ],
    "layers": [{"name": "conv1", "op": "Conv", "weight_dtype": "int8", "activation_dtype": "uint8", "sqnr_db": 30.0}],
}


def test_a_report_of_version_1_is_read_with_unknown_as_unknown() -> None:
    report = Report.model_validate(OLD)
    assert report.schema_version == REPORT_SCHEMA_VERSION == 2
    assert report.layers[0].nodes == ("conv1",)
    assert (report.findings, report.advice, report.latency) == ((), (), None)
    assert report.metrics[0].drop_interval is None
    assert report.gate[0].holds is True
    assert OLD["schema_version"] == 1, "the stored document is left as it is"


def test_what_is_of_today_stays_as_it_is() -> None:
    document = Report.model_validate(OLD).to_json_dict()
    assert upgraded(document) is document
    assert Report.model_validate(document).to_json_dict() == document
