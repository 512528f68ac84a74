"""One page to ask for a quantization: what of, with what data, how; with files sent right there, or the example's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile

from service.contracts.compatibility import model_notes, staying_ops
from service.contracts.config import parse_config, patched
from service.contracts.dataset import PREPROCESSING_NAMES
from service.contracts.errors import FieldProblem, InvalidRequestError, QuantmillError
from service.contracts.presets import RECOMMENDED
from service.dashboard import new_files
from service.dashboard.config_fields import groups, labels, largest_drop, parsed
from service.dashboard.config_form import JSON, PRESET, Document, differing, shown_defaults, values_of
from service.dashboard.drafts import (
    HAND_OVER,
    INPUTS,
    OPTION_FIELDS,
    TEXTS,
    UPLOAD_FIELDS,
    JobDraft,
    clone_patch,
    draft_of,
    posted_draft,
    read,
)
from service.dashboard.pages import PageRoute, page, see
from service.deps import AppDep, AppState, PrincipalDep, form_of
from service.hand_overs.asking import refuse_inside
from service.http import PLAIN_TEXT
from service.idempotency.answers import IdempotencyKeyReuseError
from service.jobs import service as jobs
from service.jobs.errors import NotRepeatableError
from service.jobs.schemas import JobCreate, JobValidate, JobValidated
from service.jobs.views import job_out
from service.names.kinds import DATASETS, MODELS, ResourceKind
from service.names.repository import ResourceQuery
from service.names.service import get, list_page, waited_for
from service.presets.catalog import GROUPS, entries, group_of
from service.principal import Principal
from service.reports import figures
from service.resources import ResourceNotFoundError, ResourceNotReadyError, ResourceRejectedError
from service.tables import Dataset, Model

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LISTED = 200
_WAIT_SECONDS = 20
# A query that carries what was typed over to the next page; longer ones are answered with the page itself.
_MOST_QUERY = 16 * 1024
# What data may be given for, as the names of their fields begin.
_ROLES = ("calibration", "evaluation")
# The change of a config that makes a quantized model float before anything else.
DEQUANTIZE: Document = {"preparation": {"dequantize": True}}
# What a person can mend in the form; all else is a page of its own.
_OTHERS = (401, 403, 429)
# What an id or a reference may come to.
_UNUSABLE = (ResourceNotFoundError, ResourceNotReadyError, ResourceRejectedError)


class _Begun(BaseModel):
    """What the form begins with, as the address has it."""

    source: str = Field(default="", alias="from", max_length=64)
    patch: str = Field(default="", max_length=_MOST_QUERY)
    config: str = Field(default="", max_length=_MOST_QUERY)
    preset: str = Field(default="", max_length=400, pattern=PLAIN_TEXT)
    labels: str = Field(default="", max_length=_MOST_QUERY)
    wait: int = Field(default=0, ge=0, le=25)


@router.get("/new")
async def get_new_job(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    begun: Annotated[_Begun, Query()],
) -> Response:
    """The form: empty, or filled from a job (``from``), with a merge patch of its config, or from the address."""
    draft = await app.reads.run(lambda: _begun(app, principal.tenant_id, begun.source))
    given = {name: text for name in TEXTS if (text := request.query_params.get(name))}
    draft.texts |= {**given, **({"labels": begun.labels} if begun.labels else {})}
    if begun.config:
        written = _object(begun.config, "config")
        draft.take(written)
    if begun.preset:
        draft.take({**draft.document, "preset": begun.preset})
    if begun.patch:
        change = _object(begun.patch, "patch")
        await app.checks.run(lambda: _patch(draft, change))
    await _ready(app, principal, draft, begun.wait)
    return await _page(request, app, principal, draft, status=422 if draft.errors else 200)


@router.post("/new")
async def post_new_job(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Check the job, start it, or carry its config from the form into the JSON or back."""
    posted, _ = await _posted(request, app, principal)
    action = posted.get("action", ["check"])[0]
    draft = await app.checks.run(lambda: _dequantizing(posted_draft(posted, action), action))
    if draft.errors:
        return await _page(request, app, principal, draft, status=422)
    checked = None
    try:
        if action == "start":
            return see(request, f"/jobs/{await _started(app, principal, draft)}")
        if action == "check":
            body = new_files.record(JobValidate, draft.request())
            await _judged(app, body)
            checked = await app.checks.run(lambda: jobs.check(app, principal.tenant_id, body))
    except QuantmillError as error:
        return await _refused(request, app, principal, draft, error)
    return await _page(request, app, principal, draft, checked=checked)


def _dequantizing(draft: JobDraft, action: str) -> JobDraft:
    """The draft; with its model made float first, where that was asked for."""
    if action == "dequantize" and not draft.errors:
        draft.take(patched(draft.document, DEQUANTIZE))
    return draft


@router.post("/new/model")
async def post_model(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Make a model of the files of the form, and choose it."""
    posted, files = await _posted(request, app, principal)
    draft = posted_draft(posted, "")
    try:
        sent = files.get("model_files", [])
        if not sent:
            raise InvalidRequestError("Choose a model file first.", pointer="/model_files")
        made = await new_files.model_of(app, principal, sent, draft.get("model_name") or None)
    except QuantmillError as error:
        return await _refused(request, app, principal, draft, error, {"/name": "/model_name"})
    draft.texts["model_id"] = made
    return await _carried(request, app, principal, draft)


@router.post("/new/dataset")
async def post_dataset(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Make datasets of the files of the form, and choose each for what it was given for."""
    posted, files = await _posted(request, app, principal)
    draft = posted_draft(posted, "")
    try:
        given = {role: sent for role in _ROLES if (sent := files.get(f"{role}_file"))}
        if not given:
            raise InvalidRequestError("Choose a data file first.", pointer="/calibration_file")
        named = draft.get("dataset_name") or None
        prepared = draft.get("preprocessing") or draft.get("preprocessing_name") or None
        for role, sent in given.items():
            draft.texts[f"{role}_dataset_id"] = await new_files.dataset_of(app, principal, sent[0], named, prepared)
    except QuantmillError as error:
        return await _refused(request, app, principal, draft, error, {"/name": "/dataset_name"})
    return await _carried(request, app, principal, draft)


@router.post("/new/example")
async def post_example(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Choose the model and the data that come with the service, and fill in the rest."""
    posted, _ = await _posted(request, app, principal)
    ids = await new_files.example(app, principal, posted_draft(posted, "").nonce)
    draft = JobDraft({**ids})
    draft.take(dict(new_files.EXAMPLE_CONFIG))
    return await _carried(request, app, principal, draft)


async def _posted(
    request: Request, app: AppState, by: Principal
) -> tuple[dict[str, list[str]], dict[str, list[UploadFile]]]:
    """All fields of the form, blank ones too, and its files."""
    fields: dict[str, list[str]] = {}
    files: dict[str, list[UploadFile]] = {}
    for key, value in (await form_of(request, app, by.tenant_id)).multi_items():
        if isinstance(value, str):
            fields.setdefault(key, []).append(value)
        elif value.filename:
            files.setdefault(key, []).append(value)
    return fields, files


def _begun(app: AppState, tenant_id: str, source: str) -> JobDraft:
    """An empty draft, or one with what a job was asked for."""
    if not source:
        draft = JobDraft()
        draft.take({})
        return draft
    job = job_out(jobs.get(app, tenant_id, source))
    if job.kind != "quantize" or job.config is None:
        raise NotRepeatableError(
            f"The job {source} is a {job.kind} job: this page makes quantizations.",
            hint=f"Clone it with `quantmill jobs clone {source}`.",
        )
    return draft_of(job, differing(job.config))


def _patch(draft: JobDraft, change: Document) -> None:
    """Apply a merge patch to the whole config, as advice means it."""
    whole = parse_config(draft.document).model_dump(mode="json")
    wanted = patched(whole, change)
    found = read(lambda: differing(parse_config(wanted).model_dump(mode="json")), draft)
    draft.take(patched(draft.document, change) if found is None else found)
    draft.notes.append(f"Changes from source job: {_change_words(change)}.")


def _change_words(change: Document) -> str:
    """The fields of a change, in short."""
    told = []
    for key, value in change.items():
        steps = value if isinstance(value, list) else ()
        methods = [str(step["method"]) for step in steps if isinstance(step, dict) and "method" in step]
        text = ", then ".join(methods) if methods else json.dumps(value)
        told.append(f"{key}: {text[:200]}")
    return "; ".join(told)


@cache
def _presets() -> list[tuple[str, list[tuple[str, str]]]]:
    """Name and words of each preset that is not recommended, by kind."""
    found: dict[str, list[tuple[str, str]]] = {name: [] for name, _, _ in GROUPS}
    for one in entries():
        if one.preset.name not in RECOMMENDED:
            found[group_of(one.preset)].append((one.preset.name, f"{one.preset.name}: {one.preset.description}"))
    return [(title, found[name]) for name, title, _ in GROUPS]


def _unfolded(draft: JobDraft, choices: dict[str, Choices]) -> set[str]:
    """The folded parts of the form that are shown at once: something in them is wrong, unusual, or to be done first."""
    found = set()
    nothing = not choices["model_id"].options or not choices[INPUTS[1]].options
    if nothing or any(one.other for one in choices.values()) or any(name in UPLOAD_FIELDS for name in draft.errors):
        found.add("uploads")
    seen_anyway = (PRESET, largest_drop().name)
    if any(name.startswith(("c:/", "algorithm", "metric", JSON)) and name not in seen_anyway for name in draft.errors):
        found.add("configuration")
    if draft.get("ranges_from") or draft.get(HAND_OVER) or any(name in OPTION_FIELDS for name in draft.errors):
        found.add("options")
    return found


def _count(document: Document) -> int:
    """How many fields of a config are given, beside its preset and its largest drop."""

    def leaves(value: Any) -> int:
        return sum(map(leaves, value.values())) if isinstance(value, dict) else 1

    has_drop = "max_drop" in document.get("evaluation", {}).get("gate", {}) if _has_gate(document) else False
    return leaves({key: value for key, value in document.items() if key != "preset"}) - has_drop


def _has_gate(document: Document) -> bool:
    evaluation = document.get("evaluation")
    return isinstance(evaluation, dict) and isinstance(evaluation.get("gate"), dict)


def _object(text: str, name: str) -> Document:
    try:
        found = parsed(text)
    except ValueError as error:
        raise InvalidRequestError(f"{name} is {error}.", query=name) from None
    if not isinstance(found, dict):
        raise InvalidRequestError(f"{name} has to be a JSON object.", query=name)
    return found


async def _started(app: AppState, by: Principal, draft: JobDraft) -> str:
    """The id of the job that is made, or was made by the same page."""
    request = draft.request()
    body = new_files.record(JobCreate, request)
    await _judged(app, body)
    if not draft.source:
        answer = await app.writes.run(lambda: jobs.create(app, by, body, key=draft.nonce))
        return str(answer.body["id"])
    source = await app.reads.run(lambda: job_out(jobs.get(app, by.tenant_id, draft.source)))
    patch = clone_patch(source, request)
    answer = await app.writes.run(lambda: jobs.clone(app, by, draft.source, patch, key=draft.nonce))
    return str(answer.body["id"])


async def _judged(app: AppState, body: JobCreate | JobValidate) -> None:
    """Let no hand-over go to where nothing is sent, as far as names tell it now."""
    if body.hand_over:
        await app.lookups.run(lambda: refuse_inside(app.settings, body.hand_over, f"/{HAND_OVER}"))


async def _refused(
    request: Request,
    app: AppState,
    by: Principal,
    draft: JobDraft,
    error: QuantmillError,
    fields: dict[str, str] | None = None,
) -> Response:
    """The form with what was typed and what is wrong with it."""
    if error.status >= 500 or error.status in _OTHERS:
        raise error
    if isinstance(error, IdempotencyKeyReuseError):
        draft.nonce = JobDraft().nonce
        draft.errors[""] = (
            "This form has already started a job. Press Start job again to start another one as it is now."
        )
    names = fields or {}
    problems = tuple(one.model_copy(update={"pointer": names.get(one.pointer, one.pointer)}) for one in error.errors)
    draft.tell(problems or (FieldProblem(pointer="", code=error.code, message=error.detail),))
    return await _page(request, app, by, draft, status=error.status, hint=error.hint or "")


async def _carried(request: Request, app: AppState, by: Principal, draft: JobDraft) -> Response:
    """Go on at the form's own address, with what was typed in it."""
    given = {name: text for name in TEXTS if (text := draft.get(name))}
    if draft.source:
        given["from"] = draft.source
    given |= {"config": json.dumps(draft.document), "wait": str(_WAIT_SECONDS)}
    query = urlencode(given)
    if len(query) <= _MOST_QUERY and not draft.errors and not draft.get(HAND_OVER):
        return see(request, f"/new?{query}")
    await _ready(app, by, draft, _WAIT_SECONDS)
    return await _page(request, app, by, draft)


async def _ready(app: AppState, by: Principal, draft: JobDraft, wait: int) -> None:
    """Wait until what is chosen is validated, for so many seconds at most."""
    for name in INPUTS if wait else ():
        text = draft.get(name)
        if not text:
            continue
        with suppress(*_UNUSABLE):  # which the form tells at its field
            kind: ResourceKind[Any] = MODELS if name == "model_id" else DATASETS
            await waited_for(app, kind, by.tenant_id, text, wait)


class Choices(NamedTuple):
    """Models or datasets to choose from, and what is the matter with the chosen one.

    Args:
        options: id and words of each.
        told: why the chosen one cannot be used, or blank.
        state: of the chosen one, or blank.
        other: what was written beside the list and is none of the tenant's, or blank.
    """

    options: list[tuple[str, str]]
    told: str
    state: str
    other: str = ""


def _choices(app: AppState, tenant_id: str, draft: JobDraft) -> dict[str, Choices]:
    query = ResourceQuery(status="ready")
    found: dict[str, Sequence[Model | Dataset]] = {}
    found["model_id"], _ = list_page(app, MODELS, tenant_id, query, after=None, limit=_LISTED)
    data, _ = list_page(app, DATASETS, tenant_id, query, after=None, limit=_LISTED)
    found |= dict.fromkeys(INPUTS[1:], data)
    return {name: _choices_of(app, tenant_id, draft, name, rows) for name, rows in found.items()}


def _choices_of(app: AppState, tenant_id: str, draft: JobDraft, name: str, rows: Sequence[Model | Dataset]) -> Choices:
    options, chosen = [(row.id, _words(row)) for row in rows], draft.get(name)
    if not chosen or chosen in {row.id for row in rows}:
        return Choices(options, "", "ready" if chosen else "")
    try:
        kind: ResourceKind[Any] = MODELS if name == "model_id" else DATASETS
        row: Model | Dataset = get(app, kind, tenant_id, chosen)
    except _UNUSABLE as error:
        return Choices(options, error.detail, "rejected", chosen)
    draft.texts[name] = row.id
    told = "; ".join(str(one.get("detail", "")) for one in row.problems or [])
    known = options if row.status == "ready" else [(row.id, f"{_words(row)} ({row.status})"), *options]
    if row.status == "ready" and row.id not in {one.id for one in rows}:
        known = [(row.id, _words(row)), *options]
    return Choices(known, told, row.status)


def _quantized(app: AppState, tenant_id: str, draft: JobDraft) -> tuple[str, bool] | None:
    """That the chosen model is quantized already, and whether it can be made float; None: it is float, or will be."""
    preparation = draft.document.get("preparation")
    if not draft.get("model_id") or (isinstance(preparation, dict) and preparation.get("dequantize")):
        return None
    try:
        outline = get(app, MODELS, tenant_id, draft.get("model_id")).outline or {}
    except _UNUSABLE:
        return None  # its field tells
    counts = outline.get("op_counts", {})
    notes = model_notes(counts)
    return (notes[0], not staying_ops(counts)) if notes else None


def _words(row: Model | Dataset) -> str:
    samples = (row.outline or {}).get("samples")
    return f"{row.name}@{row.version}" + (f" · {figures.count(samples, 'sample')}" if samples else "")


async def _page(
    request: Request,
    app: AppState,
    by: Principal,
    draft: JobDraft,
    *,
    status: int = 200,
    checked: JobValidated | None = None,
    hint: str = "",
) -> Response:
    choices = await app.reads.run(lambda: _choices(app, by.tenant_id, draft))
    quantized = await app.reads.run(lambda: _quantized(app, by.tenant_id, draft))
    values = values_of(draft.document)
    return page(
        request,
        "new.html.jinja",
        status=status,
        draft=draft,
        choices=choices,
        quantized=quantized,
        inputs=INPUTS,
        empty=not any(one.options for one in choices.values()),
        presets=_presets(),
        recommended=RECOMMENDED,
        largest_drop=largest_drop(),
        changes=_count(draft.document),
        unfolded=_unfolded(draft, choices),
        values=values.texts,
        ticked=values.ticked,
        defaults=shown_defaults(draft.document),
        groups=groups(),
        labels=labels(),
        was=json.dumps(draft.document, ensure_ascii=False),
        fields={"json": JSON, "preset": PRESET},
        checked=checked,
        hint=hint,
        preprocessings=PREPROCESSING_NAMES,
        preparations=new_files.preparations(),
        example_spec=new_files.EXAMPLE_SPEC,
        file_endings=", ".join(new_files.FILE_ENDINGS),
        array_endings=" ".join(new_files.ARRAY_ENDINGS),
    )
