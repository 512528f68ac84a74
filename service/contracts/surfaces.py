"""Routes in hints, in the words of each surface: a command on the command line, a call in Python, a page's name.

Source names the route, such as ``GET /v1/datasets lists them.``, and so do problems over HTTP. ``for_command_line``,
``for_python`` and ``for_page`` rewrite a text by one table.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple
from urllib.parse import quote

from service.contracts.errors import Problem


class Surface(NamedTuple):
    """Where users do what a route does; ``{name}`` is that part of the route's path."""

    command: str | None  # None: the command line has none
    page: str
    call: str | None = None  # of a Client; None: it has none, and Python is told the command


# By route. A query in a key is part of it: to wait is another command than to look.
SURFACES: dict[str, Surface] = {
    "GET /v1/models": Surface("quantmill models list", "/models", "client.models()"),
    "POST /v1/models": Surface("quantmill models push FILE", "/new", "client.push_model(path)"),
    "GET /v1/models/{model}": Surface("quantmill models show {model}", "/models/{model}", 'client.model("{model}")'),
    "GET /v1/models/{model}?wait=25": Surface(
        "quantmill models show {model}", "/models/{model}", 'client.wait_ready(client.model("{model}"))'
    ),
    "PUT /v1/models/{model}/aliases/{alias}": Surface(
        "quantmill models alias {model} {alias}", "/models/{model}", 'client.set_alias("model", "{model}", "{alias}")'
    ),
    "POST /v1/models/{model}/inspect": Surface(
        "quantmill inspect FILE", "/models/{model}", 'client.inspect("{model}")'
    ),
    "GET /v1/datasets": Surface("quantmill datasets list", "/datasets", "client.datasets()"),
    "POST /v1/datasets": Surface("quantmill datasets push FILE", "/new", "client.push_dataset(path)"),
    "GET /v1/datasets/{dataset}": Surface(
        "quantmill datasets show {dataset}", "/datasets/{dataset}", 'client.dataset("{dataset}")'
    ),
    "GET /v1/datasets/{dataset}?wait=25": Surface(
        "quantmill datasets show {dataset}", "/datasets/{dataset}", 'client.wait_ready(client.dataset("{dataset}"))'
    ),
    "POST /v1/uploads": Surface("quantmill datasets push FILE", "/new", "client.push_dataset(path)"),
    "PUT /v1/uploads/{upload}/content": Surface("quantmill datasets push FILE", "/new", "client.push_dataset(path)"),
    "GET /v1/jobs": Surface("quantmill jobs list", "/jobs", "client.jobs()"),
    "POST /v1/jobs": Surface("quantmill jobs submit", "/new", "client.submit(...)"),
    "POST /v1/evaluations": Surface("quantmill jobs evaluate", "/new", "client.submit_evaluation(...)"),
    "GET /v1/jobs/{job}": Surface("quantmill jobs show {job}", "/jobs/{job}", 'client.job("{job}")'),
    "GET /v1/jobs/{job}?wait=25": Surface("quantmill jobs follow {job}", "/jobs/{job}", 'client.wait("{job}")'),
    "POST /v1/jobs/{job}/cancel": Surface("quantmill jobs cancel {job}", "/jobs/{job}", 'client.cancel("{job}")'),
    "POST /v1/jobs/{job}/retry": Surface("quantmill jobs retry {job}", "/jobs/{job}", 'client.retry("{job}")'),
    "POST /v1/jobs/{job}/clone": Surface("quantmill jobs clone {job}", "/jobs/{job}", 'client.clone("{job}", changes)'),
    "POST /v1/jobs/{job}/hand-over": Surface(
        "quantmill jobs hand-over {job}", "/jobs/{job}", 'client.hand_over("{job}", targets)'
    ),
    "GET /v1/jobs/{job}/report": Surface(
        "quantmill jobs fetch {job} --report FILE", "/jobs/{job}/report", 'client.report("{job}")'
    ),
    "GET /v1/jobs/{job}/artifacts": Surface("quantmill jobs show {job}", "/jobs/{job}", 'client.artifacts("{job}")'),
    "GET /v1/jobs/{job}/attestation": Surface(
        "quantmill jobs fetch {job} --output FILE", "/jobs/{job}", 'client.attestation("{job}")'
    ),
    "GET /v1/batches": Surface("quantmill batches list", "/batches", "client.batches()"),
    "POST /v1/batches/{batch}/cancel": Surface(
        "quantmill batches cancel {batch}", "/batches/{batch}", 'client.cancel_batch("{batch}")'
    ),
    "GET /v1/presets": Surface("quantmill presets --all", "/new"),
    "GET /v1/targets": Surface("quantmill targets", "/new"),
    "PATCH /v1/schedules/{schedule}": Surface(
        "quantmill schedules set {schedule}",
        "/schedules/{schedule}",
        'client.change_schedule(client.schedule("{schedule}"), changes)',
    ),
    "GET /v1/schedules": Surface("quantmill schedules list", "/schedules", "client.schedules()"),
    "GET /v1/schedules/{schedule}/runs": Surface(
        "quantmill schedules runs {schedule}", "/schedules/{schedule}", 'client.schedule_runs("{schedule}")'
    ),
    "GET /v1/webhooks": Surface("quantmill webhooks list", "/webhooks", "client.webhooks()"),
    "PATCH /v1/webhooks/{webhook}": Surface(
        None, "/webhooks/{webhook}", 'client.change_webhook(client.webhook("{webhook}"), ...)'
    ),
    "GET /v1/webhooks/{webhook}/deliveries": Surface(
        "quantmill webhooks deliveries {webhook}", "/webhooks/{webhook}", 'client.webhook_deliveries("{webhook}")'
    ),
    "GET /v1/keys": Surface("quantmill keys list", "/keys", "client.keys()"),
    "POST /v1/keys": Surface("quantmill keys create", "/keys", "client.create_key(name)"),
    "GET /v1/keys/signing": Surface("quantmill keys signing", "/keys", "client.signing_keys()"),
    "GET /v1/quarantine": Surface("quantmill quarantine list", "/workers", "client.quarantine()"),
    "DELETE /v1/quarantine/{digest}": Surface(
        "quantmill quarantine release {digest}", "/workers", 'client.release("{digest}")'
    ),
    "PUT /v1/tenants/{tenant}/quota": Surface("quantmill tenants set {tenant}", "/tenants/{tenant}"),
}
# What pages are called in a sentence.
PAGES: dict[str, str] = {
    "/models": "the Models page",
    "/models/{model}": "the model's page",
    "/datasets": "the Datasets page",
    "/datasets/{dataset}": "the dataset's page",
    "/new": "the New job page",
    "/jobs": "the Jobs page",
    "/jobs/{job}": "the job's page",
    "/jobs/{job}/report": "the job's report",
    "/batches": "the Batches page",
    "/batches/{batch}": "the batch's page",
    "/schedules": "the Schedules page",
    "/schedules/{schedule}": "the schedule's page",
    "/webhooks": "the Webhooks page",
    "/webhooks/{webhook}": "the webhook's page",
    "/workers": "the Workers page",
    "/keys": "the Keys page",
    "/tenants/{tenant}": "the tenant's page",
}

# Fields of requests that are options of commands, by their place in the request.
OPTIONS: dict[str, str] = {
    "/model_id": "--model",
    "/reference_model_id": "--reference",
    "/calibration_dataset_id": "--calibration",
    "/evaluation_dataset_id": "--evaluation",
    "/preset": "--preset",
    "/config": "--config",
    "/preprocessing": "--preprocessing",
    "/cron": "CRON",
    "/timezone": "--timezone",
    "/ranges_from": "--ranges-from",
    "/priority": "--priority",
}
# The preprocessing that a hint tells, which the command line takes as an option.
_PREPROCESSING = re.compile(r"set the preprocessing to `([^`]+)`")
# What a hint says over HTTP and on pages, and what the command line says in its place.
_ON_COMMAND_LINE: dict[str, str] = {
    "Give a calibration dataset": "Give a calibration dataset with --calibration FILE",
    "Add an evaluation dataset": "Add an evaluation dataset with --evaluation FILE",
    "set preparation.dequantize to make it float again": "make it float again with `quantmill dequantize`, or with "
    "preparation.dequantize in the config",
    "Set format: ": "Give the file the extension of its format: ",
    "The schema is at /docs, under QuantizationConfig.": "docs/config.md describes every key.",
    "The schema is at /docs.": "--help of the command describes each option.",
}
_IN_PYTHON: dict[str, str] = {
    "The schema is at /docs, under QuantizationConfig.": "docs/config.md describes every key.",
    "The schema is at /docs.": "help() of the method describes each argument.",
    "those of the uploaded model; its summary and the report list them.": "those of the model that was given; of a "
    "PyTorch module, module.named_modules() lists the paths.",
}

# A form has no such fields, and describes its own.
_ON_PAGE: dict[str, str] = {"Set format: ": "Allowed file types: ", "The schema is at /docs.": ""}

ROUTE = re.compile(r"(with )?`?\b((?:GET|POST|PUT|PATCH|DELETE) /v1/[\w{}@:./-]*[\w}](?:\?wait=25)?)`?")
# What stands for a part of a path that the text does not know.
_OPEN = re.compile(r"\{.*\}|[A-Z]+")


def for_command_line(text: str) -> str:
    """The text with commands in place of routes, between backticks, and options in place of what requests hold."""
    text = _PREPROCESSING.sub(
        lambda found: f"use `--preprocessing {shlex.quote(found[1])}`", _replaced(text, _ON_COMMAND_LINE)
    )
    return _with_routes(text, lambda surface: surface.command)


def for_python(text: str) -> str:
    """The text with calls of a client in place of routes, between backticks; commands where it has none."""
    return _with_routes(_replaced(text, _IN_PYTHON), lambda surface: surface.call or surface.command)


def _replaced(text: str, words: Mapping[str, str]) -> str:
    for found, said in words.items():
        text = text.replace(found, said)
    return text


def _with_routes(text: str, said: Callable[[Surface], str | None]) -> str:
    def named(found: re.Match[str]) -> str:
        surface = surface_of(found[2])
        words = None if surface is None else said(surface)
        return found[0] if words is None else f"{found[1] or ''}`{words}`"

    return ROUTE.sub(named, text)


def for_page(text: str) -> str:
    """The text with pages' names in place of routes: what is done with a route is done on its page."""
    return "".join(words for words, _ in page_parts(text))


def page_parts(text: str) -> Iterator[tuple[str, str | None]]:
    """The same in its parts: words, and the path of the page that they name; None: they name none that is known."""
    text, end = _replaced(text, _ON_PAGE), 0
    for found in ROUTE.finditer(text):
        entry = _entry(found[2])
        if entry is None:
            continue
        surface, parts = entry
        name = PAGES[surface.page]
        before = text[end : found.start()] + ("on " if found[1] else "")
        if text[: found.start()].rstrip()[-1:] in ("", ".") and not found[1]:
            name = name[0].upper() + name[1:]
        yield before, None
        yield name, _path(surface.page, parts)
        end = found.end()
    yield text[end:], None


def rewritten(problem: Problem, rewrite: Callable[[str], str]) -> Problem:
    """The problem with each of its sentences rewritten for a surface."""
    errors = tuple(one.model_copy(update={"message": rewrite(one.message)}) for one in problem.errors)
    hint = None if problem.hint is None else rewrite(problem.hint)
    return problem.model_copy(update={"detail": rewrite(problem.detail), "hint": hint, "errors": errors})


def with_options(problem: Problem) -> Problem:
    """The problem with the options of commands in place of pointers into a request."""
    detail, errors = problem.detail, []
    for one in problem.errors:
        option = _option_of(one.pointer)
        if option is not None:
            detail = detail.replace(f"{one.pointer}: ", f"{option}: ", 1)
            one = one.model_copy(update={"pointer": option})
        errors.append(one)
    return problem.model_copy(update={"detail": detail, "errors": tuple(errors)})


def _option_of(pointer: str) -> str | None:
    """The option, and behind it the place within its document."""
    head, slash, rest = pointer[1:].partition("/")
    option = OPTIONS.get(f"/{head}")
    return option if option is None or not slash else f"{option} at /{rest}"


def surface_of(route: str) -> Surface | None:
    """The entry of a route as a text has it, such as ``GET /v1/jobs/job_1``, with parts of the path filled in."""
    found = _entry(route)
    if found is None:
        return None
    surface, parts = found
    command, call = (None if text is None else _filled(text, parts) for text in (surface.command, surface.call))
    return surface._replace(command=command, call=call)


def _path(page: str, parts: Mapping[str, str]) -> str | None:
    named = {name: part for name, part in parts.items() if f"{{{name}}}" in page}
    if any(_OPEN.search(part) for part in named.values()):
        return None
    return page.format_map({name: quote(part, safe="@") for name, part in named.items()})


def _filled(text: str, parts: Mapping[str, str]) -> str:
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", name.upper() if _OPEN.fullmatch(part) else part)
    return text


def _entry(route: str) -> tuple[Surface, dict[str, str]] | None:
    """The entry whose words fit, and the parts of the path by name; of several that with the fewest open parts."""
    fits = []
    for pattern, surface in _patterns():
        found = pattern.fullmatch(route)
        if found is not None:
            fits.append((len(found.groupdict()), surface, found.groupdict()))
    if not fits:
        return None
    _, surface, parts = min(fits, key=lambda fit: fit[0])
    return surface, parts


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Surface], ...]:
    return tuple(
        (re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/?]+)", re.escape(route))), surface)
        for route, surface in SURFACES.items()
    )
