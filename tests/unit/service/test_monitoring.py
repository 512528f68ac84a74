"""Metrics: what is declared, and the files for operators, which name only what is declared."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.docs.monitoring_page import RUNBOOK
from service.monitoring.declarations import DECLARED, OTHER, Known

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
EXAMPLE = ROOT / "deploy" / "prometheus" / "prometheus.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "quantmill.json"
_NAME = re.compile(r"\b(?:quantmill|http_server)_\w+")
# What Prometheus adds to every series.
_OWN_LABELS = {"instance", "job", "le"}


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


EXPRESSIONS = [
    *((alert["alert"], alert["expr"]) for alert in alerts()),
    *((panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]),
]


def declared(name: str) -> str:
    """The metric that a series belongs to."""
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return base if base in DECLARED and DECLARED[base].kind == "histogram" else name


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_expressions_name_metrics_and_labels_that_there_are(where: str, expression: str) -> None:
    text = re.sub(r'"[^"]*"', '""', expression)
    names = {declared(name) for name in _NAME.findall(text)}
    assert names, where
    assert names <= set(DECLARED)
    asked = {label for part in re.findall(r"\{([^}]*)\}", text) for label in re.findall(r"(\w+)\s*[=!]", part)}
    asked |= {label for part in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", text) for label in re.findall(r"\w+", part)}
    assert asked <= _OWN_LABELS.union(*(DECLARED[name].labels for name in names)), where


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    shown = {declared(name) for _, expression in EXPRESSIONS for name in _NAME.findall(expression)}
    assert set(DECLARED) - shown == set()


def test_every_alert_has_its_section_in_the_runbook_and_the_other_way_round() -> None:
    sections = re.findall(r"^### (\w+)$", RUNBOOK, re.MULTILINE)
    assert [alert["alert"] for alert in alerts()] == sections
    for alert in alerts():
        assert alert["annotations"]["runbook_url"] == f"/guide/monitoring.html#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in {"critical", "warning"}
    for section in re.split(r"^### \w+$", RUNBOOK, flags=re.MULTILINE)[1:]:
        assert all(f"*{part}" in section for part in ("Meaning.*", "Look at*", "Do.*"))


def test_panels_have_units_and_say_what_they_show() -> None:
    assert len(panels()) > 20
    for panel in panels():
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["description"].endswith("."), panel["title"]


def test_names_end_with_their_units_and_labels_tell_of_no_one() -> None:
    for metric in DECLARED.values():
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert metric.kind != "histogram" or metric.name.endswith(("_seconds", "_bytes")), metric.name
        assert not re.search(r"_(ms|milliseconds|minutes|mib|kb|percent)(_|$)", metric.name)
        assert not {"tenant", "tenant_id", "job", "job_id", "id", "path", "url", "key"} & set(metric.labels)


def test_values_that_others_choose_are_bounded() -> None:
    known = Known(most=2)
    assert [known(value) for value in ("poison", "stalled", "third", "poison")] == [
        "poison",
        "stalled",
        OTHER,
        "poison",
    ]
    assert [Known(most=9)(value) for value in ("", "A b", "x" * 64, "a\nb", "ü", "job_01")] == [*[OTHER] * 5, "job_01"]


def promtool(*arguments: str, text: str | None = None) -> str:
    """What it says of rules or metrics that are right."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("PROMTOOL IS NOT INSTALLED: alerts and metrics are not checked by it (apt-get install prometheus)")
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_accepts_alerts_and_example() -> None:
    assert f"{len(alerts())} rules found" in promtool("check", "rules", str(ALERTS))
    promtool("check", "config", str(EXAMPLE))


WAITS = 'quantmill_queue_waited_seconds{queue="cpu"}'
# Series of forty minutes, by what they let happen, and the alerts that they fire at the end.
SCENES: dict[str, tuple[dict[str, str], set[str]]] = {
    "all is well": (
        {WAITS: "10x40", 'quantmill_slots{queue="cpu",state="free"}': "2x40", "quantmill_database_up": "1x40"}, set()
    ),
    "waiting beside a free slot": (
        {
            WAITS: "1000x40", 'quantmill_slots{queue="cpu",state="free"}': "2x40",
            'quantmill_short_slots{queue="cpu"}': "1x40",
        },
        {"QuantmillJobsWaitBesideFreeSlots"},
    ),
    "waiting beside a slot for short jobs": (
        {
            WAITS: "1000x40", 'quantmill_slots{queue="cpu",state="free"}': "1x40",
            'quantmill_short_slots{queue="cpu"}': "1x40",
        },
        set(),
    ),
    "no worker": (
        {'quantmill_jobs{queue="gpu",state="queued"}': "1x40", 'quantmill_workers{queue="gpu"}': "0x40"},
        {"QuantmillNoWorker"},
    ),
    "database, disk, outbox": (
        {
            "quantmill_database_up": "0x40", 'quantmill_disk_free_bytes{place="data"}': "9x40",
            'quantmill_disk_size_bytes{place="data"}': "100x40",
            'quantmill_outbox_overdue_seconds{outbox="webhooks"}': "400x40",
        },
        {"QuantmillDatabaseAway", "QuantmillDiskLow", "QuantmillOutboxBacklog"},
    ),
    "a reconciler that stands still": (
        {
            'quantmill_reconcile_last_success_timestamp_seconds{loop="expire_leases"}': "60x40",
            'quantmill_reconcile_period_seconds{loop="expire_leases"}': "2x40",
            'quantmill_reconcile_last_success_timestamp_seconds{loop="forget_timings"}': "1200x40",
            'quantmill_reconcile_period_seconds{loop="forget_timings"}': "600x40",
        },
        {"QuantmillReconcileStale"},
    ),
    "workers that die, and a broker": (
        {
            "quantmill_leases_expired_total": "0+1x40",
            'quantmill_job_attempts_total{outcome="interrupted",code="storage-full"}': "0+1x40",
            'quantmill_broker_publish_duration_seconds_count{result="failed"}': "0+1x40",
            'quantmill_deaf_workers{queue="cpu"}': "1x40",
        },
        {"QuantmillLeasesExpire", "QuantmillAttemptsInterrupted", "QuantmillBrokerRefuses", "QuantmillWorkerDeaf"},
    ),
    "jobs and requests that fail": (
        {
            'quantmill_job_attempts_total{outcome="failed",code="poison"}': "0+2x40",
            'quantmill_job_attempts_total{outcome="succeeded",code="none"}': "0+1x40",
            'http_server_request_duration_seconds_count{http_response_status_code="500"}': "0+1x40",
            'http_server_request_duration_seconds_count{http_response_status_code="200"}': "0+9x40",
            'http_server_request_duration_seconds_bucket{http_route="/v1/jobs",le="2.5"}': "0+0x40",
            'http_server_request_duration_seconds_bucket{http_route="/v1/jobs",le="5.0"}': "0+9x40",
            'http_server_request_duration_seconds_bucket{http_route="/v1/jobs",le="+Inf"}': "0+9x40",
        },
        {"QuantmillJobsFail", "QuantmillHttpErrors", "QuantmillHttpSlow"},
    ),
    "long polls": (
        {
            f'http_server_request_duration_seconds_bucket{{http_route="/v1/jobs/{end}",le="{le}"}}': value
            for end in ("{job_id}", "{job_id}/events")
            for le, value in (("2.5", "0+0x40"), ("+Inf", "0+9x40"))
        },
        set(),
    ),
}  # fmt: skip


@pytest.mark.slow
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    runs = [f'quantmill_build_info{{process="{process}"}}' for process in ("api", "worker", "reconciler")]
    scenes = {name: ({**dict.fromkeys(runs, "1x40"), **series}, fired) for name, (series, fired) in SCENES.items()}
    scenes["nothing is there"] = ({"up": "1x40"}, {"QuantmillMetricsAbsent"})
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": series_name, "values": values} for series_name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "40m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{alert}"}}', "value": 3 if alert == "QuantmillMetricsAbsent" else 1}
                        for alert in sorted(fired)
                    ],
                }
            ],
        }
        for name, (series, fired) in scenes.items()
    ]
    assert set.union(*(fired for _, fired in scenes.values())) == {alert["alert"] for alert in alerts()}
    file = tmp_path / "alerts_test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))
