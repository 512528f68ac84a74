"""``quantmill models`` and ``quantmill datasets``, and the client's calls behind them, on a running service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.client import ApiError, Upload
from service.contracts.errors import InvalidRequestError
from tests.cli.conftest import KEY, Quantmill
from tests.support.tiny import Tiny
from tests.worker.running import Service


@pytest.fixture
def named(service: Service, tiny: Tiny, request: pytest.FixtureRequest) -> str:
    """A name with two ready models, which no other test has."""
    name = f"{request.node.name}/net@home"
    for _ in range(2):
        service.client.wait_ready(service.client.push_model(tiny.model, name=name))
    return name


def run(quantmill: Quantmill, service: Service, *words: str) -> Any:
    done = quantmill(*words, "--server", service.url, QUANTMILL_API_KEY=KEY)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_name_is_looked_after_from_a_shell(quantmill: Quantmill, service: Service, named: str) -> None:
    versions = json.loads(run(quantmill, service, "models", "versions", named, "--json"))["items"]
    assert [(item["name"], item["version"]) for item in versions] == [(named, 2), (named, 1)]
    assert "2" in run(quantmill, service, "models", "versions", named)
    listed = json.loads(run(quantmill, service, "models", "list", "--name", named, "--limit", "1", "--json"))
    assert ([item["version"] for item in listed["items"]], listed["has_more"]) == ([2], True)
    for word in ("1", "latest"):
        shown = json.loads(run(quantmill, service, "models", "show", f"{named}@{word}", "--json"))
        assert shown["version"] == (1 if word == "1" else 2)
    for version in ("1", "2"):
        made = json.loads(run(quantmill, service, "models", "alias", f"{named}@{version}", "prod", "--json"))
        assert [(item["alias"], item["version"]) for item in made["items"]] == [("prod", int(version))]
    assert "prod" in run(quantmill, service, "models", "alias", f"{named}@latest")
    assert "prod" in run(quantmill, service, "models", "show", f"{named}@prod")
    kept = quantmill("models", "rm", f"{named}@2", "--server", service.url, QUANTMILL_API_KEY=KEY)
    assert kept.returncode == 1
    assert "error[model-in-use]" in kept.stderr
    assert "alias prod" in kept.stderr
    run(quantmill, service, "models", "alias", f"{named}@2", "prod", "--drop")
    assert "is deleted" in run(quantmill, service, "models", "rm", f"{named}@2")
    versions = json.loads(run(quantmill, service, "models", "versions", named, "--json"))["items"]
    assert [item["version"] for item in versions] == [1]


def test_datasets_have_the_same_commands(quantmill: Quantmill, service: Service, tiny: Tiny) -> None:
    client = service.client
    made = client.wait_ready(client.push_dataset(tiny.calibration, name="same commands"))
    tagged = client.update(made, tags={"team": "vision"}, description="as of Tuesday")
    assert (tagged.tags, tagged.description) == ({"team": "vision"}, "as of Tuesday")
    listed = json.loads(run(quantmill, service, "datasets", "list", "--tag", "team=vision", "--json"))
    assert [item["id"] for item in listed["items"]] == [made.id]
    text = run(quantmill, service, "datasets", "show", "same commands@latest")
    assert made.id in text
    assert "team=vision" in text
    run(quantmill, service, "datasets", "rm", made.id)
    with pytest.raises(ApiError, match="same commands"):
        client.dataset("same commands@1")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("versions", "nobody"), "no model of the name"),
        (("show", "nobody@1"), "There is no model"),
        (("show", "a/b"), "no reference"),
        (("show", "a/b@1"), "There is no"),
        (("rm", "nobody@latest"), "next time"),
    ],
)
def test_what_is_not_there_is_an_error(
    quantmill: Quantmill, service: Service, words: tuple[str, ...], told: str
) -> None:
    done = quantmill("models", *words, "--server", service.url, QUANTMILL_API_KEY=KEY)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_pushed_is_described_and_tagged(quantmill: Quantmill, service: Service, tiny: Tiny) -> None:
    for noun, path in (("models", tiny.model), ("datasets", tiny.calibration)):
        given = ("--name", "described", "--description", "as of Tuesday", "--tag", "team=vision", "--tag", "of=ci")
        made = json.loads(run(quantmill, service, noun, "push", path, *given, "--json"))
        assert (made["tags"], made["description"]) == ({"team": "vision", "of": "ci"}, "as of Tuesday")
        assert made["status"] == "ready"
        wrong = quantmill(noun, "push", path, "--tag", "team", "--server", "http://127.0.0.1:1")
        assert wrong.returncode == 2
        assert "--tag" in wrong.stderr


def test_words_that_are_spelled_wrong_are_refused(quantmill: Quantmill) -> None:
    for words in (("list", "--tag", "team"), ("alias", "net@1", "--drop")):
        assert quantmill("models", *words, "--server", "http://127.0.0.1:1").returncode == 2


def test_a_name_with_a_slash_is_found_by_the_client(service: Service, named: str) -> None:
    client = service.client
    first, second = client.model(f"{named}@1"), client.model(f"{named}@latest")
    assert (first.version, second.version) == (1, 2)
    assert client.set_alias("model", f"{named}@1", "prod").id == client.model(f"{named}@prod").id == first.id
    assert client.set_alias("model", second.id, "prod").version == 2
    assert [move.version for move in client.alias_moves("model", f"{named}@1", "prod")] == [2, 1]
    client.drop_alias("model", first.id, "prod")
    with pytest.raises(InvalidRequestError):
        client.model(f"{named}@prod")
    client.delete("model", f"{named}@1")
    assert [model.id for model in client.models(name=named)] == [second.id]


def test_a_file_that_is_there_is_not_sent_again(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "some.bin"
    path.write_bytes(b"bytes that nobody else sends")
    told: list[tuple[int, int]] = []
    first = service.client.upload_file(path)
    second = service.client.upload_file(path, progress=lambda sent, whole: told.append((sent, whole)))
    assert isinstance(second, Upload)
    assert (first.sha256, first.id != second.id) == (second.sha256, True)
    assert told[-1] == (second.size_bytes, second.size_bytes)
