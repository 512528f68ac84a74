"""The help of the command line: commands in groups, and texts that are shown as they are written."""

from __future__ import annotations

import re
from functools import partial
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


_MOST_GROUPS = 3
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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command; of one that is in a group alone, the error names the group."""
        if args[0] not in self.commands:
            groups = [name for name, one in self.commands.items() if args[0] in getattr(one, "commands", {})]
            if 0 < len(groups) <= _MOST_GROUPS:
                meant = " or ".join(f"`quantmill {name} {args[0]}`" for name in groups)
                ctx.fail(f"No such command {args[0]!r}. Did you mean {meant}?")
        return super().resolve_command(ctx, args)


def _escape(command: Any) -> None:
    """Have square brackets shown in all texts of a command and of those below it."""
    if command.help:
        command.help = _shown(command.help)
    for parameter in command.params:
        if getattr(parameter, "help", None):
            parameter.help = _shown(parameter.help)
        if parameter.param_type_name == "argument":
            parameter.get_usage_pieces = partial(_usage, parameter)
        elif getattr(parameter, "is_flag", False):
            parameter.display_type_rich = _no_type
    command.get_help_option = partial(_help_option, command.get_help_option)
    for inner in getattr(command, "commands", {}).values():
        _escape(inner)


def _usage(argument: Any, ctx: Any) -> list[str]:
    """An argument in the usage line: MODEL.onnx, [NAME], KEY=VALUE..."""
    name = argument.display_name_raw.strip("[]")
    if argument.nargs != 1 and not name.endswith("..."):
        name += "..."
    return [name if argument.required else f"[{name}]"]


def _no_type(ctx: Any) -> None:
    """A flag takes no value."""


def _help_option(make: Any, ctx: Any) -> Any:
    option = make(ctx)
    if option is not None:
        option.display_type_rich = _no_type
    return option


def _shown(text: str) -> str:
    return _TAG.sub(r"\1\1\\\2", text)
