"""The list of jobs, and the page of one: its config, its stages, its log, its curves and its forms."""

from __future__ import annotations

import html
import json
import re
import shlex

import pytest
from sqlalchemy import update

from service.contracts.errors import NotOnnxError
from service.contracts.report import Report
from service.contracts.runner import ProgressLine
from service.dashboard import jobs as jobs_pages
from service.jobs import events, transitions
from service.jobs.outcome import QuantizeOutcome
from service.tables import Job
from tests.dashboard.test_new_job import nouns
from tests.dashboard.test_resources import shown
from tests.support.each import each
from tests.support.filled import HOSTILE_LABELS, HOSTILE_NAME, run
from tests.support.front import Front, make_report

STAGE = re.compile(r'<li class="(\w+)" data-stage="([^"]+)">.*?<span class="hint">([^<]*)</span>')


def add(front: Front, job_id: str, *told: events.Entry, attempt: int = 1) -> int:
    with front.app.database.write() as session:
        return events.append_all(session, job_id, attempt, list(told))


def test_jobs_are_filtered(sqlite_front: Front) -> None:
    both = nouns(sqlite_front)
    first = sqlite_front.new_job(name="alpha", labels={"team": "vision"}, **both)
    second = sqlite_front.new_job(name="beta", config={"preset": "int8"}, **both)
    sqlite_front.http.post(f"/v1/jobs/{second}/cancel")

    def found(query: str) -> set[str]:
        text = shown(sqlite_front, f"/jobs{query}")
        return {job_id for job_id in (first, second) if f'href="/jobs/{job_id}"' in text}

    for query, wanted in (
        ("", {first, second}),
        ("?search=alph", {first}),
        ("?state=canceled", {second}),
        ("?state=queued&search=beta", set()),
        ("?label=team%3Dvision", {first}),
        ("?label=team%3Dother", set()),
        ("?verdict=pass", set()),
        (f"?model_id={both['model_id']}", {first, second}),
    ):
        assert found(query) == wanted, query
    assert "No matching jobs" in shown(sqlite_front, "/jobs?search=gamma")
    assert 'value="alph"' in shown(sqlite_front, "/jobs?search=alph"), "what was asked for is kept"


@each("query", ["state=nonsense", "verdict=maybe", "label=team", "label=%3Dx", "cursor=none", "search=" + "x" * 201])
def test_bad_filters_are_told(sqlite_front: Front, query: str) -> None:
    answer = sqlite_front.http.get(f"/jobs?{query}")
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"].startswith("text/html") and "<h1" in answer.text


def test_jobs_are_shown_page_by_page(sqlite_front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_pages, "_LIMIT", 2)
    both = nouns(sqlite_front)
    made = [sqlite_front.new_job(name=f"job {k}", **both) for k in range(5)]
    path, seen = "/jobs?search=job", []
    for _ in range(3):
        text = shown(sqlite_front, path)
        seen += re.findall(r'<a href="/jobs/(job_\w+)"', text)
        older = re.search(r'rel="next" href="([^"]+)"', text)
        path = "/jobs" + older[1].replace("&amp;", "&") if older else ""
    assert (seen, path) == (made[::-1], "")


def test_a_job_tells_what_differs_from_its_preset_and_how_to_do_it_again(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job(
        name="it's", labels={"a": "b c"}, config={"preset": "int8", "seed": 7}, **nouns(sqlite_front)
    )
    text = shown(sqlite_front, f"/jobs/{job_id}")
    table = text[text.index("Changes from preset") :]
    assert "<code>/seed</code>" in table and "<mark><code>7</code></mark>" in table
    assert f"client.retry(&#39;{job_id}&#39;)" in text
    job = sqlite_front.http.get(f"/v1/jobs/{job_id}").json()
    command, curl = (
        html.unescape(one) for one in re.findall(r'<pre class="take"[^>]*>(.*?)</pre>', text, re.DOTALL)[:2]
    )
    config, submit = (part.strip() for part in command.split("<<'JSON'\n")[1].split("\nJSON\n"))
    assert json.loads(config) == {"preset": "int8", "seed": 7}
    told = shlex.split(submit.replace("\\\n", " "))
    assert told[:3] == ["quantmill", "jobs", "submit"]
    options = dict(zip(told[3::2], told[4::2], strict=False))
    assert options["--model"] == job["model_id"] and options["--calibration"] == job["calibration_dataset_id"]
    assert (options["--name"], options["--label"], options["--config"]) == ("it's", "a=b c", "config.json")
    body = json.loads(curl.split("<<'JSON'\n")[1].split("\nJSON")[0])
    assert body["config"]["seed"] == 7
    assert sqlite_front.http.post("/v1/jobs", json=body).status_code == 202
    plain = shown(sqlite_front, f"/jobs/{sqlite_front.new_job(config={'preset': 'int8'})}")
    assert "Preset int8, unchanged" in plain and "--preset int8" in plain and "config.json" not in plain


def test_a_collapse_and_a_failed_gate_lead_wherever_a_job_is_shown(sqlite_front: Front) -> None:
    document = make_report().to_json_dict()
    broken = {"clause": "max_drop", "metric": "top1", "wanted": 1.0, "got": 5.0, "holds": False}
    lost = {"clause": "sanity", "metric": "top1", "wanted": 50.0, "got": 2.0, "holds": False, "why": "near chance"}
    for clause, told in ((broken, "Gate failed"), (lost, "Collapsed")):
        report = Report.model_validate({**document, "verdict": "fail", "gate": [clause]})
        job_id = sqlite_front.new_job()
        sqlite_front.finish(job_id, QuantizeOutcome(report, ()))
        for path in ("/", "/jobs", f"/jobs/{job_id}"):
            assert f'<span class="state bad"><span aria-hidden="true">✖</span> {told}' in shown(sqlite_front, path), (
                path
            )
        assert f'<span aria-hidden="true">✖</span> {told}' in shown(sqlite_front, f"/jobs/{job_id}/report")
        assert "succeeded in" in shown(sqlite_front, f"/jobs/{job_id}"), "the state keeps its name"
        warned = "This recipe collapsed" if told == "Collapsed" else "This job has a bad result: gate failed"
        schedule = shown(sqlite_front, f"/schedules/new?from={job_id}")
        assert "Each run would repeat it" not in shown(sqlite_front, f"/schedules/new?from={sqlite_front.new_job()}")
        assert warned in schedule and f'<a href="/jobs/{job_id}">Look at the job</a>' in schedule


def test_the_first_figure_says_that_it_is_of_the_calibration_data(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    sqlite_front.finish(job_id, QuantizeOutcome(make_report("none").model_copy(update={"gate": ()}), ()))
    text = shown(sqlite_front, f"/jobs/{job_id}")
    assert "Succeeded, no gate" in text
    line = "\N{MINUS SIGN}0.50 points (significance not tested), 32 samples of the calibration data"
    assert line in text and line in shown(sqlite_front, f"/jobs/{job_id}/report")
    assert "on the calibration data" in text.split('<dl class="tiles">')[1].split("</div>")[0]


@each(("low", "tone"), [(0.1, "bad"), (-0.1, "plain"), (None, "plain")])
def test_a_change_is_red_only_if_it_is_significant(sqlite_front: Front, low: float | None, tone: str) -> None:
    document = make_report().to_json_dict()
    if low is not None:
        document["metrics"][0]["drop_interval"] = {
            "low": low,
            "high": 0.9,
            "confidence": 0.95,
            "method": "mcnemar",
            "samples": 32,
        }
    job_id = sqlite_front.new_job()
    sqlite_front.finish(job_id, QuantizeOutcome(Report.model_validate(document), ()))
    for path in ("/jobs", f"/jobs/{job_id}"):
        told = re.findall(r'<span class="(\w+)">' "\N{MINUS SIGN}0.50 points", shown(sqlite_front, path))
        assert told[0] == tone, path


@each("verdict", ["none", "pass", "undecided", "fail"])
def test_a_critical_finding_leads_unless_the_gate_failed(sqlite_front: Front, verdict: str) -> None:
    finding = {"code": "labels-shifted", "severity": "critical", "message": "Labels are shifted by one."}
    mild = {**finding, "code": "few-samples", "severity": "warning"}
    document = {**make_report().to_json_dict(), "verdict": verdict, "findings": [finding, mild]}
    job_id = sqlite_front.new_job()
    sqlite_front.finish(job_id, QuantizeOutcome(Report.model_validate(document), ()))
    word = "Gate failed" if verdict == "fail" else "Critical finding"
    for path in ("/", "/jobs", f"/jobs/{job_id}"):
        badge = f'<span class="state bad"><span aria-hidden="true">✖</span> {word}'
        assert badge in shown(sqlite_front, path), path
    text = shown(sqlite_front, f"/jobs/{job_id}")
    assert "Labels are shifted by one." in text and "The figures cannot be trusted." in text
    if verdict != "fail":
        page = shown(sqlite_front, f"/jobs/{job_id}/report")
        assert page.index("Critical finding") < page.index("Labels are shifted by one.") < page.index("cards")
    assert f'href="/jobs/{job_id}/report#findings"' in text
    assert sqlite_front.http.get(f"/v1/jobs/{job_id}").json()["figures"]["critical_findings"] == 1


def test_a_job_that_runs_shows_how_far_it_is(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    run(sqlite_front, job_id)
    text = shown(sqlite_front, f"/jobs/{job_id}")
    timeline = text.partition('id="timeline"')[2].partition("</ol>")[0]
    assert timeline.index("Queued") < timeline.index("Running") < timeline.index("claimed")
    assert "job.queued" not in timeline
    assert '<noscript><meta http-equiv="refresh"' in text, "without scripts it is shown anew"
    for told in ('value="0.5"', "Layer &lt;b&gt;conv&lt;/b&gt; is tuned.", "finetune: loss"):
        assert told in text
    part = shown(sqlite_front, f"/jobs/{job_id}/curves")
    assert text.count("<svg") == part.count("<svg") == 2
    assert 'id="live"' in part


def test_the_error_of_a_layer_before_and_after_stands_in_one_chart(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    attempt = sqlite_front.claim(job_id).attempt
    values = {"error_before": 0.4, "error_after": 0.1, "error_left_percent": 25.0}
    lines = [("metric", {"stage": "adaround", "step": step, **values}) for step in (1, 2)]
    with sqlite_front.app.database.write() as session:
        events.append_all(session, job_id, attempt, lines)
    part = shown(sqlite_front, f"/jobs/{job_id}/curves")
    assert re.findall(r"<figcaption>(.*?)</figcaption>", part) == ["AdaRound: error", "AdaRound: error left, %"]
    assert all(f'class="number">{word}</th>' in part for word in ("Layer", "Before", "After"))


def test_a_result_is_shown_while_advice_is_tried(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    attempt = sqlite_front.claim(job_id).attempt
    path = f"/jobs/{job_id}"
    assert re.search(r'id="early" hidden', shown(sqlite_front, path))
    for line in (
        ProgressLine(stage="result", message="top1 90.00 -> 89.50 %, latency 1.80x faster."),
        ProgressLine(stage="advice", done=1, total=3, unit="trials"),
    ):
        with sqlite_front.app.database.write() as session:
            assert transitions.record_progress(session, job_id, attempt, line)
    text = shown(sqlite_front, path)
    assert re.search(r'id="early"><h2>Result ready, trying advice</h2><p>top1 90.00 -&gt; 89.50 %', text)
    assert STAGE.findall(text) == [("now", "advice", "1/3 trials")]


def test_stages_stand_in_the_order_in_which_the_job_came_to_them(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()

    def stages() -> list[tuple[str, ...]]:
        return STAGE.findall(shown(sqlite_front, f"/jobs/{job_id}"))

    def tell(*told: tuple[str, int, int]) -> None:
        for stage, done, total in told:
            line = ProgressLine(stage=stage, done=done, total=total, unit="layers")
            with sqlite_front.app.database.write() as session:
                assert transitions.record_progress(session, job_id, attempt, line)

    assert stages() == []
    attempt = sqlite_front.claim(job_id).attempt
    tell(("load", 0, 0), ("calibration", 1, 8), ("calibration", 8, 8), ("adaround", 3, 9))
    assert stages() == [("done", "load", ""), ("done", "calibration", "8 layers"), ("now", "adaround", "3/9 layers")]
    tell(("calibration", 2, 4))
    assert [row[:2] for row in stages()] == [("done", "load"), ("now", "calibration"), ("done", "adaround")]
    with sqlite_front.app.database.write() as session:
        assert transitions.fail(session, job_id, attempt, problem=NotOnnxError("It is none.").problem())
    assert [row[:2] for row in stages()] == [("done", "load"), ("failed", "calibration"), ("done", "adaround")]


def test_log_and_config_stand_there_whole_and_line_by_line(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    sqlite_front.claim(job_id)
    add(sqlite_front, job_id, *(("log", {"level": "info", "message": one}) for one in ("<first>\u202e", "second")))
    page = shown(sqlite_front, f"/jobs/{job_id}")
    assert re.search(r"INFO &lt;first&gt;\\u202e\n\S+ 1 INFO second\n", page)
    config = json.loads(html.unescape(page.split('aria-label="Resolved config">')[1].split("</pre>")[0]))
    assert config == sqlite_front.http.get(f"/v1/jobs/{job_id}").json()["config"]
    assert "\\n" not in page.split('id="again"')[1].replace('" \\\n', "")


def test_curves_are_of_the_last_attempt_and_the_page_says_from_where_the_stream_goes_on(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    sqlite_front.claim(job_id)
    for attempt, least in ((1, 111.5), (2, 222.5)):
        figures = [{"step": step, "error_left_percent": left} for step, left in ((1, 333.0), (2, least), (3, None))]
        told = [("metric", {"stage": "adaround", "error_before": 0.5, **one}) for one in figures]
        last = add(sqlite_front, job_id, *told, attempt=attempt)
    page = shown(sqlite_front, f"/jobs/{job_id}")
    assert f'data-after="{last}"' in page
    for text in (page, shown(sqlite_front, f"/jobs/{job_id}/curves")):
        assert "<figcaption>AdaRound: error left, %</figcaption><svg" in text
        assert text.count("<figcaption>") == 2
        assert "222.5" in text and "111.5" not in text
    for state in ("queued", "running", "succeeded"):
        assert f'<span data-of="{state}">' in page, "what the script shows states with"


def test_forms_cancel_repeat_and_forget_a_job(sqlite_front: Front) -> None:
    sqlite_front.http.follow_redirects = False
    job_id = sqlite_front.new_job()

    def post(what: str) -> tuple[int, str | None]:
        answer = sqlite_front.http.post(f"/jobs/{job_id}/{what}")
        return answer.status_code, answer.headers.get("location")

    assert post("delete") == (409, None), "it has not ended"
    assert post("cancel") == (303, f"/jobs/{job_id}")
    assert sqlite_front.http.get(f"/v1/jobs/{job_id}").json()["state"] == "canceled"
    status, again = post("retry")
    assert status == 303 and sqlite_front.http.get(f"/v1{again}").json()["retry_of"] == job_id
    assert post("delete") == (303, "/jobs")
    assert post("delete")[0] == 404


def test_hostile_names_are_text(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    with sqlite_front.app.database.write() as session:
        named = {"name": HOSTILE_NAME, "labels": HOSTILE_LABELS}
        session.execute(update(Job).where(Job.id == job_id).values(named))
    for path in ("/", "/jobs", f"/jobs/{job_id}"):
        text = shown(sqlite_front, path)
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and HOSTILE_NAME not in html.unescape(text)
        assert not any(attack in text for attack in ("<script>alert", "<img src=x", "\u202e"))
