"""Pages of models, datasets, comparisons, batches and trials: what they show, and what their forms do."""

from __future__ import annotations

import html
import json
import re
from urllib.parse import parse_qs

import pytest

from service.contracts.config import QuantizationConfig, advised_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.feeding import fed_as
from service.contracts.report import Report
from service.contracts.search import TrialFigures
from service.dashboard.tradeoffs import SQNR, Mark, drop_of, trade_off
from service.dashboard.trials import patch_of
from service.jobs.outcome import QuantizeOutcome
from service.tables import Model
from tests.dashboard.form_of import Form
from tests.dashboard.test_new_job import nouns
from tests.support.batches import fail, grid_body, job_of, submitted, succeed
from tests.support.filled import searching
from tests.support.front import Front, make_report
from tests.support.reports import search_document


def shown(front: Front, path: str, status: int = 200) -> str:
    """The page, which styles and runs nothing within itself."""
    answer = front.http.get(path)
    assert answer.status_code == status, answer.text
    assert "style=" not in answer.text and "<style" not in answer.text
    return answer.text


def posted(front: Front, path: str, status: int = 303, **fields: str | list[str]) -> str:
    answer = front.http.post(path, data=fields, follow_redirects=False)
    assert answer.status_code == status, answer.text
    return answer.headers.get("location", answer.text)


def test_empty_lists_say_what_to_do_first(sqlite_front: Front) -> None:
    for path in ("models", "datasets", "jobs", "batches", "schedules", "webhooks"):
        page = shown(sqlite_front, f"/{path}")
        assert f"No {path} yet" in page and "No matching" not in page and "Clear filters" not in page
    assert '<details class="uploads" id="uploads" open>' in shown(sqlite_front, "/new")
    assert "No matching models" in shown(sqlite_front, "/models?search=x")
    nouns(sqlite_front)
    assert '<details class="uploads" id="uploads">' in shown(sqlite_front, "/new")


@pytest.mark.parametrize("noun", ["model", "dataset"])
def test_a_noun_is_listed_shown_changed_and_deleted(sqlite_front: Front, noun: str) -> None:
    made = sqlite_front.ready_model() if noun == "model" else sqlite_front.ready_dataset()
    refused = sqlite_front.rejected_model() if noun == "model" else sqlite_front.rejected_dataset()
    base = f"/{noun}s"
    assert made in shown(sqlite_front, base) and made not in shown(sqlite_front, f"{base}?search=nothing")
    assert made in shown(sqlite_front, f"{base}?status=ready")
    assert "finding critical" in shown(sqlite_front, f"{base}/{refused}")
    assert refused not in shown(sqlite_front, base) and f"Show rejected {noun}s" in shown(sqlite_front, base)
    why = sqlite_front.http.get(f"/v1{base}/{refused}").json()["problems"][0]["detail"]
    rejected = shown(sqlite_front, f"{base}?status=rejected")
    assert why in html.unescape(rejected) and f"{refused}/delete" in rejected and made not in rejected

    wrong = posted(sqlite_front, f"{base}/{made}/edit", 422, description="kept", tags="no sign")
    assert "kept" in wrong and "is not a tag" in wrong
    posted(sqlite_front, f"{base}/{made}/edit", description="of the night", tags="a=1\nb=2")
    assert "of the night" in shown(sqlite_front, f"{base}/{made}") and made in shown(sqlite_front, f"{base}?tag=a=1")

    refused = posted(sqlite_front, f"{base}/{made}/aliases", 422, alias="No Alias")
    assert "aria-invalid" in refused and "lower-case letters" in refused
    assert posted(sqlite_front, f"{base}/{made}/aliases", alias="prod") == f"{base}/{made}"
    asked = shown(sqlite_front, f"{base}/{made}/delete")
    version = sqlite_front.http.get(f"/v1{base}/{made}").json()
    assert "prod" in asked and f"{version['name']}@{version['version']}" in asked and 'class="danger"' not in asked
    posted(sqlite_front, f"{base}/{made}/delete", 409)
    posted(sqlite_front, f"{base}/{made}/aliases/end", alias="prod")
    assert posted(sqlite_front, f"{base}/{made}/delete") == base
    shown(sqlite_front, f"{base}/{made}", 404)


def test_schedules_that_would_go_on_with_an_older_version_are_confirmed(sqlite_front: Front) -> None:
    older, newer, data = sqlite_front.ready_model(), sqlite_front.ready_model(), sqlite_front.ready_dataset()
    name = sqlite_front.http.get(f"/v1/models/{newer}").json()["name"]
    template = {"model_id": f"{name}@latest", "calibration_dataset_id": data}
    body = {"name": "of the night", "cron": "0 3 * * *", "template": template}
    assert sqlite_front.http.post("/v1/schedules", json=body).status_code == 201
    path = f"/models/{newer}/delete"
    asked = shown(sqlite_front, path)
    assert "of the night" in asked and "required" in asked
    assert "of the night" not in shown(sqlite_front, f"/models/{older}/delete")
    assert "of the night" in posted(sqlite_front, path, 409)
    assert posted(sqlite_front, path, confirmed="yes") == posted(sqlite_front, path) == "/models"
    # the last version is held by the schedule
    asked = shown(sqlite_front, f"/models/{older}/delete")
    assert "of the night" in asked and 'class="danger"' not in asked
    assert "of the night" in posted(sqlite_front, f"/models/{older}/delete", 409, confirmed="yes")


def test_a_dataset_gets_a_version_with_other_preprocessing_of_the_same_file(sqlite_front: Front) -> None:
    made = sqlite_front.ready_dataset()
    assert "used as stored (no preprocessing)" in shown(sqlite_front, f"/datasets/{made}")
    spec = {"inputs": {"*": {"layout": "NHWC", "scale": 0.0625, "mean": [0.5], "std": [0.25]}}}
    path = posted(sqlite_front, f"/datasets/{made}/preprocessing", preprocessing=json.dumps(spec))
    before, after = (sqlite_front.http.get(f"/v1{one}").json() for one in (f"/datasets/{made}", path))
    assert (after["name"], after["version"], after["sha256"]) == (before["name"], 2, before["sha256"])
    assert after["fed_as"] == "fed to the model as NCHW (stored as NHWC), (x × 0.0625 − 0.5) / 0.25"
    assert after["fed_as"] in shown(sqlite_front, path)
    path = posted(sqlite_front, f"/datasets/{made}/preprocessing", preprocessing_name="imagenet_tf", preprocessing="")
    assert "x × 0.007843 − 1" in shown(sqlite_front, path)
    for wrong, told in (
        ("{no JSON", "The preprocessing is not JSON"),
        ('{"inputs": {"*": {"layout": "XYZ"}}}', "inputs/*/layout: "),
        ("imagenetx", "imagenetx"),
    ):
        page = posted(sqlite_front, f"/datasets/{made}/preprocessing", 422, preprocessing=wrong)
        form = Form(page, "prepare")
        assert form["preprocessing"] == wrong and told in form.described["preprocessing"]


def test_a_filter_that_cannot_be_read_is_told_at_its_field(sqlite_front: Front) -> None:
    nouns(sqlite_front)
    for path, name in (("jobs", "label"), ("models", "tag"), ("datasets", "tag")):
        page = shown(sqlite_front, f"/{path}?{name}=no sign", 422)
        assert page.count("Use KEY=VALUE.") == 1 and 'value="no sign"' in page and f'id="h-{name}"' in page
        assert f"No {path}" not in page and "No matching" not in page


def test_images_are_never_called_used_as_stored() -> None:
    for spec, words in (
        ({"colour": "grey"}, "grey images"),
        ({"resize": {"shorter_side": 256}}, "images resized to a shorter side of 256"),
        ({"resize": {"shorter_side": 256}, "crop": (224, 224)}, "images of 224 × 224"),
    ):
        assert fed_as(PreprocessingSpec.model_validate({"pictures": spec})) == f"fed to the model as {words}"


def test_a_quantized_model_says_so(sqlite_front: Front) -> None:
    made = sqlite_front.ready_model()
    assert "Already quantized" not in shown(sqlite_front, "/models")
    with sqlite_front.app.database.write() as session:
        row = session.get(Model, made)
        assert row is not None
        counts = {"op_counts": {"QuantizeLinear": 1}}
        row.summary, row.outline = row.summary | counts, row.outline | counts
    assert "Already quantized" in shown(sqlite_front, "/models")
    page = shown(sqlite_front, f"/models/{made}")
    assert "Already quantized" in page
    assert '<a class="button quiet" href="/new?model_id=' in page, "quantizing it is not what to do first"
    offered = re.search(r'href="(/new\?[^"]+)">Make it float first', page)
    assert offered is not None
    assert 'id="quantized"' in shown(sqlite_front, f"/new?model_id={made}")
    assert 'id="quantized"' not in shown(sqlite_front, html.unescape(offered[1]))
    form = Form(shown(sqlite_front, f"/new?model_id={made}")).fields | {"action": ["dequantize"]}
    page = sqlite_front.http.post("/new", data=form, headers={"Accept": "text/html"}).text
    assert "dequantize" in page and 'id="quantized"' not in page


def test_a_change_that_somebody_else_was_faster_with_is_asked_for_again(sqlite_front: Front) -> None:
    path = f"/models/{sqlite_front.ready_model()}"
    seen = Form(shown(sqlite_front, path), "edit")
    posted(sqlite_front, f"{path}/edit", **seen.with_fields({"description": "theirs"}))
    mine = seen.with_fields({"description": "mine,\nof two lines", "tags": "a=1"})
    late = posted(sqlite_front, f"{path}/edit", 412, **mine)
    again = Form(late, "edit")
    assert "Changed by somebody else" in late and "theirs" in late
    assert (again["description"], again["tags"]) == ("mine,\nof two lines", "a=1")
    assert sqlite_front.http.get(f"/v1{path}").json()["description"] == "theirs"
    posted(sqlite_front, f"{path}/edit", **again.fields)
    stored = sqlite_front.http.get(f"/v1{path}").json()
    assert (stored["description"], stored["tags"]) == ("mine,\nof two lines", {"a": "1"})


def test_an_alias_is_moved_once_it_is_known_where_it_stands(sqlite_front: Front) -> None:
    paths = [f"/models/{sqlite_front.ready_model()}" for _ in range(3)]

    def stands() -> int:
        found: int = sqlite_front.http.get(f"/v1{paths[0]}/aliases/prod").json()["version"]
        return found

    posted(sqlite_front, f"{paths[0]}/aliases", alias="prod")
    told = posted(sqlite_front, f"{paths[1]}/aliases", 409, alias="prod")
    assert "prod points to version 1" in told and "Move alias" in told
    assert stands() == 1
    knowing = Form(told, "set-alias")
    posted(sqlite_front, f"{paths[0]}/aliases", alias="canary")
    posted(sqlite_front, f"{paths[1]}/aliases", 409, **knowing.with_fields({"alias": "canary"}))
    posted(sqlite_front, f"{paths[1]}/aliases", **knowing.fields)
    assert stands() == 2
    posted(sqlite_front, f"{paths[0]}/aliases", 409, alias="prod")
    # what was seen has been moved on since
    again = posted(sqlite_front, f"{paths[2]}/aliases", 409, **knowing.fields)
    assert "prod points to version 2" in again and stands() == 2
    posted(sqlite_front, f"{paths[1]}/aliases", alias="prod")
    assert stands() == 2


@pytest.mark.parametrize("noun", ["model", "dataset"])
def test_aliases_stand_beside_the_versions_that_they_stand_for(sqlite_front: Front, noun: str) -> None:
    make = sqlite_front.ready_model if noun == "model" else sqlite_front.ready_dataset
    first, second = make(), make()
    for alias in ("prod", "canary"):
        posted(sqlite_front, f"/{noun}s/{first}/aliases", alias=alias)
    for page in (f"/{noun}s", f"/{noun}s/{second}"):
        text = shown(sqlite_front, page)
        row = re.search(rf'<tr><th[^>]*><a href="/{noun}s/{first}".*?</th>', text)
        assert row is not None and re.findall(r"<code>@(\w+)</code>", row[0]) == ["canary", "prod"], page
        assert text.count("<code>@prod") == 1


def test_an_inspection_is_asked_for_and_jobs_are_compared(sqlite_front: Front) -> None:
    model_id = sqlite_front.ready_model()
    path = posted(sqlite_front, f"/models/{model_id}/inspect", target="qnn")
    assert path.startswith(f"/models/{model_id}/inspections/")
    page = shown(sqlite_front, path)
    assert "for qnn" in page and 'http-equiv="refresh"' in page
    first, second = sqlite_front.succeeded_job(), sqlite_front.succeeded_job()
    assert "Compare jobs" in shown(sqlite_front, f"/compare?job={first}")
    page = shown(sqlite_front, f"/compare?job={second}&job={first}")
    assert f"/v1/compare.csv?job={first}&amp;job={second}" in page
    assert "B against A" in page and "same" in page and '<svg class="chart"' in page
    assert '<td data-label="Point">A</td>' in page
    assert page.index(f"/jobs/{first}") < page.index(f"/jobs/{second}"), "the oldest is the baseline"
    turned = f"/compare?baseline={second}&job={first}"
    assert turned.replace("&", "&amp;") in page
    page = shown(sqlite_front, turned)
    assert page.index(f"/jobs/{second}") < page.index(f"/jobs/{first}")
    assert shown(sqlite_front, f"/compare?job={first}&job={second}&baseline={second}") == page
    chooser = shown(sqlite_front, f"/compare?job={first}")
    again = sqlite_front.http.post(f"/v1/jobs/{second}/retry").json()["id"]
    sqlite_front.finish(again, QuantizeOutcome(make_report(), ()))
    assert f"/compare?baseline={second}&amp;job={again}" in shown(sqlite_front, f"/jobs/{again}")
    page = shown(sqlite_front, f"/compare?job={first}&job={again}&job={second}")
    assert page.index(f"/jobs/{second}") < page.index(f"/jobs/{first}"), "the source of another is the baseline"
    assert re.findall(r'name="(\w+)" value="(\w+)"[^>]* checked', chooser) == [("job", first)]
    chooser = shown(sqlite_front, f"/compare?baseline={first}")
    assert re.findall(r'name="(\w+)" value="(\w+)"[^>]* checked', chooser) == [("job", first), ("baseline", first)]
    assert "Only one job is chosen." in chooser


def test_a_batch_shows_its_members_and_the_front_as_it_grows(sqlite_front: Front) -> None:
    batch = submitted(sqlite_front, grid_body(sqlite_front, models=1))
    path = f"/batches/{batch['id']}"
    assert "once two jobs have a result" in shown(sqlite_front, path)
    assert batch["id"] in shown(sqlite_front, "/batches")
    succeed(sqlite_front, job_of(batch, 0), drop=0.5, size_bytes=1000)
    fail(sqlite_front, job_of(batch, 1))
    assert "Retry failed jobs" in shown(sqlite_front, path)
    posted(sqlite_front, f"{path}/retry-failed")
    assert "Cancel jobs" in shown(sqlite_front, path)
    again = sqlite_front.http.get(f"/v1{path}").json()
    succeed(sqlite_front, job_of(again, 1), drop=0.1, size_bytes=2000)
    page = shown(sqlite_front, path)
    assert page.count("model front") == 2 and "points" in page
    assert posted(sqlite_front, f"{path}/delete") == "/batches"


def test_trials_are_shown_and_one_of_them_taken(sqlite_front: Front) -> None:
    document = search_document()
    config = document["manifest"]["config"]
    trial = document["algorithms"][0]["search"]["trials"][1]
    job_id = sqlite_front.new_job()
    sqlite_front.finish(job_id, QuantizeOutcome(Report.model_validate(document), ()))

    page = shown(sqlite_front, f"/jobs/{job_id}/trials")
    assert "goal 0.5" in page and "model front" in page and 'Use recipe<span class="unseen"> 2<' in page
    taken = patch_of(config, TrialFigures.model_validate(trial))
    made = advised_config(QuantizationConfig.model_validate(config), taken)
    assert [one.method for one in made.algorithms] == ["bias_correction"]
    assert made.activation.calibration.method == "mse"
    address = page.split('href="/new?')[-1].split('"')[0].replace("&amp;", "&")
    asked = parse_qs(address)
    assert asked["from"] == [job_id] and json.loads(asked["patch"][0]) == taken
    assert "No trials" in shown(sqlite_front, f"/jobs/{sqlite_front.succeeded_job()}/trials")


def test_trials_are_shown_as_they_come(sqlite_front: Front) -> None:
    job_id = searching(sqlite_front, **nouns(sqlite_front))
    page = shown(sqlite_front, f"/jobs/{job_id}/trials")
    assert 'http-equiv="refresh"' in page and "3 recipes so far" in page
    assert "as configured: &lt;b&gt;calibration alone&lt;/b&gt;" in page and "recipe 3" in page
    rows = re.findall(r"<tr>.*?</tr>", page.partition("All recipes, in order")[2], re.DOTALL)[1:]
    cells = [[re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<td.*?</td>", row)] for row in rows]
    assert cells[0] == ["1", "20.50 dB", "0.25", "1000 B", "2.00x faster"]
    assert cells[2] == ["3", "–", "–", "–", "–"]
    assert page.count("model front") == 4 and "goal 0.5" in page
    assert f"/jobs/{job_id}/trials" in shown(sqlite_front, f"/jobs/{job_id}")
    sqlite_front.http.post(f"/v1/jobs/{job_id}/cancel")


def test_the_front_holds_what_no_other_equals_or_beats() -> None:
    figures = {"good": (0.1, 200, 0.5), "small": (0.5, 100, 0.9), "beaten": (0.6, 150, 0.9), "unknown": (None, 90, 0.1)}
    marks = [Mark(name, None, *values) for name, values in figures.items()]
    found = trade_off(drop_of("top1", "%"), marks)
    assert found is not None and found.timed
    assert [row.mark.label for row in found.rows if row.front] == ["good", "small"]
    assert [row.point for row in found.rows] == ["1", "2", "3", "4"]
    assert trade_off(SQNR, marks[3:]) is None
