"""What manifests may say: variables that are settings, and commands with options that there are."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from service.settings import Settings
from worker.cli import app

# Any characters that a password may have.
PASSWORD = "p@ss/w#rd 'x' \"$y\" %25 \\ ${Z} ö"
COMMON_SECRETS = {"QUANTMILL_DATABASE_PASSWORD", "QUANTMILL_BROKER_PASSWORD"}
API_SECRETS = {"QUANTMILL_API_KEY", "QUANTMILL_KEY_PEPPER"}
# Of libraries: the object store's, OpenTelemetry's.
FOREIGN = ("AWS_", "AZURE_", "GOOGLE_", "OTEL_")


def is_setting(variable: str) -> bool:
    """True for a variable that a process of ours reads."""
    prefix, _, name = variable.partition("_")
    ours = prefix == "QUANTMILL" and name.lower() in Settings.model_fields
    return ours or variable.startswith(FOREIGN)


def check_command(words: Sequence[str]) -> None:
    """Fail unless ``quantmill`` has the command, and the command each option and value, as it would parse them."""
    command = typer.main.get_command(app).commands[words[0]]
    command.make_context(words[0], [str(word) for word in words[1:]]).close()
