"""The page for a new job, without scripts: choosing, form and JSON, checking, starting, cloning."""

from __future__ import annotations

import json
import re

import pytest

from service.contracts.presets import PRESETS, RECOMMENDED
from service.dashboard import new_job
from tests.dashboard.form_of import Form
from tests.support.front import Front


def form(front: Front, address: str = "/new") -> Form:
    answer = front.http.get(address)
    assert answer.status_code == 200, answer.text
    return Form(answer.text)


def send(front: Front, action: str, page: Form, status: int = 200, **fields: object) -> Form:
    data = page.with_fields({**fields, "action": action})
    answer = front.http.post("/new", data=data, follow_redirects=False)
    assert answer.status_code == status, Form(answer.text).described
    return Form(answer.text)


def start(front: Front, page: Form, **fields: object) -> str:
    """Press Start; the id of the job."""
    data = page.with_fields({**fields, "action": "start"})
    answer = front.http.post("/new", data=data, follow_redirects=False)
    assert answer.status_code == 303, Form(answer.text).described
    assert answer.headers["location"].startswith("/jobs/job_")
    return answer.headers["location"].removeprefix("/jobs/")


def nouns(front: Front) -> dict[str, str]:
    return {"model_id": front.ready_model(), "calibration_dataset_id": front.ready_dataset()}


def job(front: Front, job_id: str) -> dict:
    return front.http.get(f"/v1/jobs/{job_id}").json()


def test_ready_ones_are_chosen_and_others_reached_by_id_and_by_name(
    sqlite_front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, newest, waiting = nouns(sqlite_front), nouns(sqlite_front), sqlite_front.new_model()
    text = sqlite_front.http.get("/new").text
    assert text.index(f'value="{newest["model_id"]}"') < text.index(f'value="{chosen["model_id"]}"')
    assert waiting not in text
    monkeypatch.setattr(new_job, "_LISTED", 1)
    alias = f"/v1/models/{chosen['model_id']}/aliases/prod"
    sqlite_front.http.put(alias, headers={"If-None-Match": "*"}).raise_for_status()
    blank = form(sqlite_front)
    assert chosen["model_id"] not in sqlite_front.http.get("/new").text
    for written in (chosen["model_id"], "tiny@1", "tiny@prod"):
        seen = send(sqlite_front, "check", blank, model_id=newest["model_id"], model_id_other=written)
        assert (seen["model_id"], seen["model_id_other"]) == (chosen["model_id"], "")
    fields = {"model_id_other": "tiny@prod", "calibration_dataset_id_other": "data@1"}
    seen = job(sqlite_front, start(sqlite_front, blank, **fields))
    assert {name: seen[name] for name in chosen} == chosen
    for written, told in (("tiny@prodd", "not found"), ("tiny@0", "neither"), ("none@1", "No model is named")):
        page = send(sqlite_front, "check", blank, 404, **chosen, model_id_other=written)
        assert told in page.described["model_id"]
        assert (page["model_id"], page["model_id_other"]) == ("", written)
        carried = sqlite_front.http.get("/new", params={"model_id": written, "wait": 5})
        assert (carried.status_code, Form(carried.text)["model_id_other"]) == (200, written)


@pytest.mark.parametrize(("noun", "field"), [("model", "model_id"), ("dataset", "calibration_dataset_id")])
def test_the_page_of_a_noun_leads_to_a_form_with_it_chosen(sqlite_front: Front, noun: str, field: str) -> None:
    made = nouns(sqlite_front)[field]
    address = re.search(r'href="(/new\?[^"]*)"', sqlite_front.http.get(f"/{noun}s/{made}").text)
    assert address is not None
    assert form(sqlite_front, address[1])[field] == made


def test_a_job_is_started_from_the_form_with_what_differs_from_the_preset_alone(sqlite_front: Front) -> None:
    fields = {
        "c:/preset": "a16w8",
        "c:/weight/granularity": "per_channel",
        "c:/evaluation/gate/min_sqnr_db": "10.5",
        **{"name": "By hand", "labels": "team=vision\nround=2", "priority": "7"},
    }
    seen = job(sqlite_front, start(sqlite_front, form(sqlite_front), **nouns(sqlite_front), **fields))
    assert (seen["name"], seen["labels"], seen["priority"]) == ("By hand", {"team": "vision", "round": "2"}, 7)
    config = seen["config"]
    assert (config["activation"]["dtype"], config["weight"]["granularity"]) == ("int16", "per_channel")
    assert config["evaluation"]["gate"]["min_sqnr_db"] == 10.5


def test_two_clicks_make_one_job_and_another_page_or_asking_again_another(sqlite_front: Front) -> None:
    page, chosen = form(sqlite_front), nouns(sqlite_front)
    first = start(sqlite_front, page, **chosen)
    assert start(sqlite_front, page, **chosen) == first
    assert start(sqlite_front, form(sqlite_front), **chosen) != first
    again = send(sqlite_front, "start", page, 422, **chosen, name="changed")
    assert again["name"] == "changed" and again["nonce"] != page["nonce"]
    assert start(sqlite_front, again) != first


def test_the_form_is_shown_as_json_and_the_json_as_form(sqlite_front: Front) -> None:
    fields = {
        "c:/activation/calibration/method": "percentile",
        "c:/activation/calibration@percentile/percentile": "99.9",
        "algorithm": ["", "adaround"],
        "algorithm:adaround/num_iterations": "50",
        "c:/exclude": '[{"op_type": "Gemm"}]',
    }
    shown = send(sqlite_front, "show", form(sqlite_front), **fields)
    written = {
        "activation": {"calibration": {"method": "percentile", "percentile": 99.9}},
        "algorithms": [{"method": "adaround", "num_iterations": 50}],
        "exclude": [{"op_type": "Gemm"}],
    }
    assert json.loads(shown["config"]) == written
    other = {**written, "preset": "a16w8", "seed": 3, "tensor_ranges": {"a\nb": {"minimum": 0.0, "maximum": 1.5}}}
    taken = send(sqlite_front, "take", shown, config=json.dumps(other))
    assert (taken["c:/preset"], taken["c:/seed"]) == ("a16w8", "3")
    assert taken["c:/activation/calibration@percentile/percentile"] == "99.9"
    assert "adaround" in taken.fields["algorithm"]
    assert taken["algorithm:adaround/num_iterations"] == "50"
    assert json.loads(send(sqlite_front, "show", taken)["config"]) == other
    blank = send(sqlite_front, "show", taken, **{name: "" for name in fields if name != "algorithm"}, algorithm=[""])
    assert json.loads(blank["config"]) == {name: other[name] for name in ("preset", "seed", "tensor_ranges")}


def test_json_is_started_as_it_is_and_not_guessed_between_it_and_a_changed_form(sqlite_front: Front) -> None:
    chosen = nouns(sqlite_front)
    made = start(sqlite_front, form(sqlite_front), **chosen, config='{"mode": "dynamic"}')
    assert job(sqlite_front, made)["config"]["mode"] == "dynamic"
    fields = {"c:/seed": "5", "config": '{"seed": 6}'}
    page = send(sqlite_front, "start", form(sqlite_front), 422, **chosen, **fields)
    assert "both changed" in page.described["config"]
    assert json.loads(send(sqlite_front, "show", page)["config"]) == {"seed": 5}
    assert json.loads(send(sqlite_front, "take", page)["config"]) == {"seed": 6}


def test_a_preset_is_one_of_the_cards_or_of_the_list_of_all_others(sqlite_front: Front) -> None:
    assert next(iter(RECOMMENDED)) == "int8" and set(RECOMMENDED) < set(PRESETS)
    blank, chosen = form(sqlite_front), nouns(sqlite_front)
    assert blank.fields["c:/preset"] == ["int8", ""]
    listed = send(sqlite_front, "check", blank, **chosen, **{"c:/preset": ["int8", "xint8"]})
    assert listed.fields["c:/preset"] == ["xint8"], "the list overrides the cards, and is kept"
    # without scripts, the list still shows what was chosen before
    card = send(sqlite_front, "check", listed, **{"c:/preset": ["npu_int8", "xint8"]})
    assert card.fields["c:/preset"] == ["npu_int8", ""]
    assert send(sqlite_front, "check", listed, **{"c:/preset": ["a16w8"]})["c:/preset"] == "a16w8"
    made = job(sqlite_front, start(sqlite_front, card))
    assert made["preset"] == "npu_int8"


def test_errors_stand_at_their_fields_and_what_was_typed_stays(sqlite_front: Front) -> None:
    chosen, waiting, blank = nouns(sqlite_front), sqlite_front.new_model(), form(sqlite_front)
    for fields, at, told, status in (
        ({"c:/seed": "-1"}, "c:/seed", "must be at least 0", 422),
        ({"c:/weight/block_size": "many"}, "c:/weight/block_size", "integer", 422),
        ({"c:/exclude": "[Conv"}, "c:/exclude", "not JSON", 422),
        ({"algorithm": ["", "adaround"], "algorithm:adaround/batch_size": "0"},
         "algorithm:adaround/batch_size", "1", 422),
        ({"c:/activation/calibration/method": "entropy", "c:/activation/calibration@entropy/bins": "1"},
         "c:/activation/calibration@entropy/bins", "128", 422),
        ({"metric": ["", "accuracy_at_k"]}, "metric:accuracy_at_k/k", "is missing", 422),
        ({"c:/evaluation/gate/max_drop": "-2"}, "c:/evaluation/gate/max_drop", "at least", 422),
        ({"c:/float_dtype": "float16", "c:/mode": "dynamic", "algorithm": [""]},
         "c:/float_dtype", "needs mode static", 422),
        ({"config": '{\n  "sed": 1\n}'}, "config", "did you mean 'seed'", 422),
        ({"config": "{"}, "config", "not JSON", 422),
        ({"labels": "nothing"}, "labels", "KEY=VALUE", 422),
        ({"priority": "1000"}, "priority", "100", 422),
        ({"model_id": ""}, "model_id", "is missing", 422),
        ({"model_id": waiting}, "model_id", "still being validated", 409),
    ):  # fmt: skip
        typed = {**chosen, "name": "kept", **fields}
        page = send(sqlite_front, "start", blank, status, **typed)
        assert told in page.described[at], (at, page.described.get(at))
        for name, value in typed.items():
            assert page.fields[name] == (value if isinstance(value, list) else [value])


def test_a_check_tells_what_the_job_would_take_and_stores_nothing(sqlite_front: Front) -> None:
    data = form(sqlite_front).with_fields({**nouns(sqlite_front), "action": "check"})
    answer = sqlite_front.http.post("/new", data=data)
    assert answer.status_code == 200 and "Ready to start" in answer.text and "Memory" in answer.text
    assert sqlite_front.http.get("/v1/jobs").json()["items"] == []


def test_a_job_is_cloned_with_changes(sqlite_front: Front) -> None:
    config = {"preset": "a16w8", "seed": 4, "algorithms": [{"method": "adaround", "num_iterations": 7}]}
    source = sqlite_front.new_job(config=config, name="first", labels={"a": "1", "b": "2"}, priority=3)
    page = form(sqlite_front, f"/new?from={source}")
    assert json.loads(page["config"]) == config
    assert (page["name"], page["labels"], page["priority"]) == ("first", "a=1\nb=2", "3")
    made = start(sqlite_front, page, **{"c:/seed": "5", "name": "", "labels": "b=3"})
    seen, before = job(sqlite_front, made), job(sqlite_front, source)
    assert seen["cloned_from"] == source
    assert seen["config"] == {**before["config"], "seed": 5}
    assert (seen["name"], seen["labels"], seen["priority"]) == ("tiny@1, a16w8 + AdaRound", {"b": "3"}, 3)
    assert seen["model_id"] == before["model_id"]


def test_advice_is_applied_to_the_config_of_its_job(sqlite_front: Front) -> None:
    source = sqlite_front.new_job(config={"seed": 9})
    calibration = {"method": "percentile", "percentile": 99.9}
    patch = {"activation": {"calibration": {**calibration, "moving_average": None}}}
    page = form(sqlite_front, f"/new?from={source}&patch={json.dumps(patch)}")
    assert json.loads(page["config"])["activation"]["calibration"].items() >= calibration.items()
    seen = job(sqlite_front, start(sqlite_front, page))
    assert seen["config"]["activation"]["calibration"] == calibration
    assert (seen["config"]["seed"], seen["cloned_from"]) == (9, source)


def test_a_patch_that_does_not_fit_is_told_at_its_field(sqlite_front: Front) -> None:
    answer = sqlite_front.http.get("/new", params={"patch": '{"seed": -1}'})
    assert answer.status_code == 422
    assert "must be at least 0" in Form(answer.text).described["c:/seed"]
    assert sqlite_front.http.get("/new", params={"patch": "{"}).status_code == 422
    assert sqlite_front.http.get("/new", params={"from": "job_0"}).status_code == 404
