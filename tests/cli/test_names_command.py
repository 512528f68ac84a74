"""``quantmill models`` and ``quantmill datasets``, and the client's calls behind them, on a running service."""

from __future__ import annotations

import json

import pytest

from service.client import ApiError
from service.contracts.errors import InvalidRequestError
from tests.cli.conftest import Ask
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.running import Service

pytestmark = pytest.mark.slow  # on a service


@pytest.fixture
def named(service: Service, tiny: Tiny) -> str:
    """A name with two ready models, which no other test has."""
    name = "looked after/net@home"
    for made in [service.client.push_model(tiny.model, name=name) for _ in range(2)]:
        service.client.wait_ready(made, timeout_seconds=PATIENCE_SECONDS)
    return name


def test_a_name_is_looked_after_from_a_shell(ask: Ask, service: Service, named: str) -> None:
    versions = json.loads(ask("models", "versions", named, "--json"))["items"]
    assert [(item["name"], item["version"]) for item in versions] == [(named, 2), (named, 1)]
    assert "2" in ask("models", "versions", named)
    listed = json.loads(ask("models", "list", "--name", named, "--limit", "1", "--json"))
    assert ([item["version"] for item in listed["items"]], listed["has_more"]) == ([2], True)
    for word in ("1", "latest"):
        shown = json.loads(ask("models", "show", f"{named}@{word}", "--json"))
        assert shown["version"] == (1 if word == "1" else 2)
    for version in ("1", "2"):
        made = json.loads(ask("models", "alias", f"{named}@{version}", "prod", "--json"))
        assert [(item["alias"], item["version"]) for item in made["items"]] == [("prod", int(version))]
    assert "prod" in ask("models", "alias", f"{named}@latest")
    assert "prod" in ask("models", "show", f"{named}@prod")
    kept = ask("models", "rm", f"{named}@2", code=1)
    assert "error[model-in-use]" in kept
    assert "alias prod" in kept
    assert [move.version for move in service.client.alias_moves("model", f"{named}@1", "prod")] == [2, 1]
    ask("models", "alias", f"{named}@2", "prod", "--drop")
    with pytest.raises(InvalidRequestError):
        service.client.model(f"{named}@prod")
    assert "was deleted" in ask("models", "rm", f"{named}@2")
    versions = json.loads(ask("models", "versions", named, "--json"))["items"]
    assert [item["version"] for item in versions] == [1]


def test_datasets_have_the_same_commands(ask: Ask, service: Service, tiny: Tiny) -> None:
    client = service.client
    made = client.wait_ready(client.push_dataset(tiny.calibration, name="same commands"))
    tagged = client.update(made, tags={"team": "vision"}, description="as of Tuesday")
    assert (tagged.tags, tagged.description) == ({"team": "vision"}, "as of Tuesday")
    listed = json.loads(ask("datasets", "list", "--tag", "team=vision", "--name", "same commands", "--json"))
    assert [item["id"] for item in listed["items"]] == [made.id]
    text = ask("datasets", "show", "same commands@latest")
    assert made.id in text
    assert "team=vision" in text
    ask("datasets", "rm", made.id)
    with pytest.raises(ApiError, match="same commands"):
        client.dataset("same commands@1")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("versions nobody", "no model named"),
        ("show nobody@1", "No model is named"),
        ("show a/b", "no reference"),
        ("show a/b@1", "There is no"),
        ("rm nobody@latest", "next time"),
    ],
)
def test_what_is_not_there_is_an_error(ask: Ask, command: str, told: str) -> None:
    assert told in ask("models", *command.split(), code=1)
