"""The help of the command line: commands in groups, and texts that are shown as they are written."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperGroup

# Groups of commands in the order in which ``quantmill --help`` shows them.
PANELS: dict[str, tuple[str, ...]] = {
    "Quantize": (
        "quantize", "evaluate", "inspect", "compare", "report", "apply-advice", "dequantize", "provenance", "verify",
        "reproduce", "presets", "targets", "demo",
    ),
    "Service": ("up", "api", "worker", "reconcile", "migrate", "doctor"),
    "Registry": ("models", "datasets", "dataset", "quarantine"),
    "Automation": ("jobs", "batches", "schedules", "webhooks"),
    "Operate": ("queues", "keys", "tenants", "audit", "gc", "scrub", "backup", "restore"),
}  # fmt: skip


# What rich takes for markup. Its own function is not loaded: processes of a service have no use for rich.
_TAG = re.compile(r"(\\*)(\[[a-z#/@][^[]*?\])")


class PanelGroup(TyperGroup):
    """The whole command line: its commands by group, and no text of theirs taken for rich's markup."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        _escape(self)
        ordered = {}
        for panel, names in PANELS.items():
            for name in names:
                ordered[name] = self.commands.pop(name)
                ordered[name].rich_help_panel = panel  # type: ignore[attr-defined]
        self.commands = {**ordered, **self.commands}

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of the groups."""
        return list(self.commands)


def _escape(command: Any) -> None:
    """Have square brackets shown in all texts of a command and of those below it."""
    if command.help:
        command.help = _shown(command.help)
    for parameter in command.params:
        if getattr(parameter, "help", None):
            parameter.help = _shown(parameter.help)
    for inner in getattr(command, "commands", {}).values():
        _escape(inner)


def _shown(text: str) -> str:
    return _TAG.sub(r"\1\1\\\2", text)
