"""What a run of MLflow is told: keys and values within its limits, and nothing that should not leave."""

from __future__ import annotations

from service.client.mlflow_facts import MOST_PARAM_CHARS, MOST_PARAMS, key_of, params_of, plain_url, stale_labels
from service.contracts.config import parse_config


def test_a_key_is_one_that_mlflow_takes() -> None:
    for name, key in (
        ("weight.dtype", "weight.dtype"),
        ("top-1 of a/b", "top-1 of a/b"),
        ("größe@3", "gr__e_3"),
        ("a//b/../c", "a/c"),
        ("/../a", "a"),
        ("", "_"),
    ):
        assert key_of(name) == key


def test_params_are_the_fields_of_the_config_by_their_path() -> None:
    config = parse_config({"preset": "int8_accurate", "exclude": [{"node": "a"}, {"node": "b"}]})
    found = params_of(config.model_dump(mode="json"))
    assert found.left_out == 0
    assert found.values["preset"] == "int8_accurate"
    assert found.values["seed"] == str(config.seed)
    assert found.values["algorithms.0.method"] == config.algorithms[0].method
    assert found.values["exclude.1.node"] == "b"


def test_a_list_of_plain_values_is_one_param() -> None:
    assert params_of({"a": [1, 2], "b": True, "c": None, "d": 0.5}).values == {"a": "[1, 2]", "b": "true", "d": "0.5"}


def test_what_does_not_fit_is_left_out_whole_and_counted() -> None:
    found = params_of({"long": "x" * (MOST_PARAM_CHARS + 1), "k" * 251: 1, "ä": 1, "ö": 2, "fits": 1})
    assert (found.values, found.left_out) == ({"_": "1", "fits": "1"}, 3)
    many = params_of({"ranges": {f"t{number}": number for number in range(MOST_PARAMS + 7)}})
    assert (len(many.values), many.left_out) == (MOST_PARAMS, 7)


def test_an_address_is_told_without_what_is_secret_in_it() -> None:
    assert plain_url("https://me:word@host:8000/in?key=1#f") == "https://host:8000/in"


def test_labels_that_the_job_has_no_longer_are_known() -> None:
    there = ["quantmill.label.a", "quantmill.label.b", "mlflow.user", "quantmill.verdict"]
    assert stale_labels(there, {"quantmill.label.a": "1"}) == ["quantmill.label.b"]
