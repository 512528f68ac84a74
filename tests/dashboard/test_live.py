"""The page of a job that runs: its stages, and the curves of what they tell."""

from __future__ import annotations

import html
import json
import re
from typing import Any

from service.contracts.errors import NotOnnxError
from service.contracts.runner import ProgressLine
from service.jobs import events, transitions
from tests.api.conftest import app, sqlite_front
from tests.support.front import Front

__all__ = ["app", "sqlite_front"]
STAGE = re.compile(r'<li class="(\w+)" data-stage="([^"]+)">.*?<span class="hint">([^<]*)</span>')


def tell(front: Front, job_id: str, attempt: int, *stages: tuple[str, int, int]) -> None:
    for stage, done, total in stages:
        line = ProgressLine(stage=stage, done=done, total=total, unit="layers")
        with front.desk.database.write() as session:
            assert transitions.record_progress(session, job_id, attempt, line)


def stages(front: Front, job_id: str) -> list[tuple[str, ...]]:
    page = front.http.get(f"/jobs/{job_id}")
    assert page.status_code == 200, page.text
    return STAGE.findall(page.text)


def test_stages_stand_in_the_order_in_which_the_job_came_to_them(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    assert stages(sqlite_front, job_id) == []
    attempt = sqlite_front.claim(job_id).attempt
    tell(
        sqlite_front, job_id, attempt, ("load", 0, 0), ("calibration", 1, 8), ("calibration", 8, 8), ("adaround", 3, 9)
    )
    told = [("done", "load", ""), ("done", "calibration", "8/8 layers"), ("now", "adaround", "3/9 layers")]
    assert stages(sqlite_front, job_id) == told
    tell(sqlite_front, job_id, attempt, ("calibration", 2, 4))
    assert [row[:2] for row in stages(sqlite_front, job_id)] == [
        ("done", "load"),
        ("now", "calibration"),
        ("done", "adaround"),
    ]
    with sqlite_front.desk.database.write() as session:
        assert transitions.fail(session, job_id, attempt, problem=NotOnnxError("It is none.").problem())
    assert [row[:2] for row in stages(sqlite_front, job_id)] == [
        ("done", "load"),
        ("failed", "calibration"),
        ("done", "adaround"),
    ]


def test_log_and_config_stand_there_whole_and_line_by_line(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    attempt = sqlite_front.claim(job_id).attempt
    told: list[events.Entry] = [("log", {"level": "info", "message": words}) for words in ("<first>\u202e", "second")]
    with sqlite_front.desk.database.write() as session:
        events.append_all(session, job_id, attempt, told)
    page = sqlite_front.http.get(f"/jobs/{job_id}").text
    assert re.search(r"INFO &lt;first&gt;\\u202e\n\S+ 1 INFO second\n", page)
    config = json.loads(html.unescape(re.split("The resolved config</summary><pre[^>]*>", page)[1].split("</pre>")[0]))
    assert config == sqlite_front.http.get(f"/v1/jobs/{job_id}").json()["config"]
    assert "\\n" not in page.split('id="again"')[1].replace('" \\\n', "")


def test_layers_are_drawn_by_their_number_and_the_page_says_from_where_the_stream_goes_on(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    attempt = sqlite_front.claim(job_id).attempt
    told: list[events.Entry] = [
        ("metric", {"stage": "adaround", "step": step, "error_before": 0.5, "error_left_percent": left})
        for step, left in ((1, 40.0), (2, 30.0), (3, None))
    ]
    with sqlite_front.desk.database.write() as session:
        last = events.append_all(session, job_id, attempt, told)
    page: Any = sqlite_front.http.get(f"/jobs/{job_id}")
    assert f'data-after="{last}"' in page.text
    for text in (page.text, sqlite_front.http.get(f"/jobs/{job_id}/curves").text):
        assert "<figcaption>adaround: error_left_percent</figcaption><svg" in text
        assert text.count("<figcaption>") == 2
    for state in ("queued", "running", "succeeded"):
        assert f'<span data-of="{state}">' in page.text, "what the script shows states with"
