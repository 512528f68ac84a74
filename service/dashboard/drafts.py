"""A job that is being written in the form: what was typed, and the request that it makes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.contracts.errors import FieldProblem, InvalidConfigError, InvalidRequestError, QuantmillError
from service.contracts.surfaces import for_page
from service.dashboard.config_fields import parsed
from service.dashboard.config_form import JSON, Document, applied, field_of
from service.dashboard.forms import pretty
from service.jobs.schemas import JobOut
from service.jobs.views import given_name
from service.quark import translate_document

INPUTS = ("model_id", "calibration_dataset_id", "evaluation_dataset_id")
# Beside each list of the form is a field for what it does not contain: what is written there overrides the list.
OTHER = "_other"
# Fields of the form that stand in the request under their own names; those of files are for their buttons alone.
TEXTS = (*INPUTS, "ranges_from", "name", "labels", "priority", "device")
# Holds URLs that are as good as keys: it never stands in an address.
HAND_OVER = "hand_over"
_FILES = ("model_name", "dataset_name", "preprocessing", "preprocessing_name")
# Fields of files, which errors stand at.
_UPLOADS = ("model_files", "calibration_file", "evaluation_file")
UPLOAD_FIELDS = (*_FILES, *_UPLOADS)
OPTION_FIELDS = ("ranges_from", "name", "labels", "priority", "device", HAND_OVER)
_WAS, _MOST_NONCE = "config_was", 64
_BOTH = "The form and the JSON were both changed. Choose one: Update JSON takes the form, Apply JSON takes the JSON."


@dataclass
class JobDraft:
    """What the form shows."""

    texts: dict[str, str] = field(default_factory=dict)  # what is typed, by field; blank where nothing is
    document: Document = field(default_factory=dict)  # the config, as far as it differs from its preset
    text: str = "{}"  # the config as JSON, as it was typed
    reuse: bool = False  # whether a job that has done the same already will do
    source: str = ""  # id of the job that it is a clone of, or blank
    # the same for all that one page sends: of two clicks on its button the second makes no second job
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    errors: dict[str, str] = field(default_factory=dict)  # what is wrong, by field
    notes: list[str] = field(default_factory=list)  # what else is to be told

    def get(self, name: str) -> str:
        """What is typed in a field."""
        return self.texts.get(name, "")

    def take(self, document: Document) -> None:
        """Have this config."""
        self.document, self.text = document, pretty(document)

    def tell(self, problems: tuple[FieldProblem, ...], *, whole: str = "") -> None:
        """Put problems at their fields; of two at one place the first is told.

        Args:
            problems: with pointers into a request for a job.
            whole: the field of what is found nowhere in particular.
        """
        for problem in problems:
            at = self._field_of(problem.pointer) or whole
            within = problem.pointer.removeprefix(f"/{HAND_OVER}").removeprefix("/") if at == HAND_OVER else ""
            self.errors.setdefault(at, for_page(f"{within}: {problem.message}" if within else problem.message))

    def _field_of(self, pointer: str) -> str:
        head, _, rest = pointer.removeprefix("/").partition("/")
        head = "model_files" if head == "files" else head
        if head == "config":
            return field_of(f"/{rest}" if rest else "", self.document)
        return head if head in (*TEXTS, HAND_OVER, *UPLOAD_FIELDS) else ""

    def request(self) -> dict[str, Any]:
        """The request for the job.

        Raises:
            InvalidRequestError: a label, the priority or a hand-over cannot be read.
        """
        given = (*INPUTS, "ranges_from", "name", "device")
        found: dict[str, Any] = {name: text for name in given if (text := self.get(name))}
        found["config"] = self.document
        found["labels"] = _labels(self.get("labels"))
        found["priority"] = _priority(self.get("priority"))
        if self.get(HAND_OVER):
            found[HAND_OVER] = _hand_over(self.get(HAND_OVER))
        return {**found, "reuse": True} if self.reuse else found


def posted_draft(posted: Mapping[str, list[str]], action: str) -> JobDraft:
    """What a form has sent; what is wrong with its config stands in ``errors``.

    Args:
        posted: all fields.
        action: ``take`` has the JSON hold, ``show`` the fields; with any other the one that was changed does.
    """
    texts = {name: _first(posted, name) for name in (*TEXTS, HAND_OVER, *_FILES)}
    texts |= {name: text for name in INPUTS if (text := _first(posted, name + OTHER))}
    draft = JobDraft(texts, reuse=bool(_first(posted, "reuse")), source=_first(posted, "from"))
    draft.nonce = _first(posted, "nonce")[:_MOST_NONCE] or draft.nonce
    was = _document(_first(posted, _WAS) or "{}", JobDraft())
    filled, problems = applied(was, posted)
    text = _first(posted, JSON)
    written = _document(text, draft) if text else was
    if action == "show" or written == was or (action != "take" and written == filled):
        draft.take(filled)
        if action == "show" or written == was:
            draft.errors.pop(JSON, None)
        draft.tell(tuple(_in_request(one) for one in problems))
        return draft
    if action != "take" and filled != was:
        draft.errors[JSON] = _BOTH
        draft.document, draft.text = filled, text
    elif JSON in draft.errors:
        draft.document, draft.text = filled, text
    else:
        draft.take(_translated(written, draft))
    return draft


def draft_of(job: JobOut, config: Document) -> JobDraft:
    """What a job was asked for, to be changed."""
    given = {name: getattr(job, name) or "" for name in INPUTS} | {"name": given_name(job) or ""}
    labels = "\n".join(f"{key}={value}" for key, value in job.labels.items())
    draft = JobDraft({**given, "labels": labels, "priority": str(job.priority), "device": job.device}, source=job.id)
    draft.take(config)
    return draft


def clone_patch(job: JobOut, request: dict[str, Any]) -> dict[str, Any]:
    """The merge patch that makes this request of the job's; its config begins anew, from its preset."""
    config = {"preset": "int8", **request["config"]}
    dropped = dict.fromkeys(name for name in (*INPUTS[1:], "name") if name not in request)
    labels = {**dict.fromkeys(key for key in job.labels if key not in request["labels"]), **request["labels"]}
    return {**dropped, **request, "config": config, "labels": labels}


def read(work: Callable[[], Document], draft: JobDraft) -> Document | None:
    """What ``work`` gives; where it fails, its problems are told in the draft.

    Args:
        work: gives a config, or raises an error with pointers into one.
        draft: that is told.
    """
    try:
        return work()
    except (InvalidConfigError, InvalidRequestError) as error:
        draft.tell(tuple(_in_request(one) for one in error.errors), whole=JSON)
        return None


def _in_request(problem: FieldProblem) -> FieldProblem:
    return problem.model_copy(update={"pointer": f"/config{problem.pointer}"})


def _translated(document: Document, draft: JobDraft) -> Document:
    """The config; one in AMD Quark's form is turned into ours."""
    try:
        translation = translate_document(document, "/config")
    except QuantmillError as error:
        draft.errors[JSON] = error.detail
        return document
    if translation is None:
        return document
    draft.notes += [f"Translated from AMD Quark: {note}" for note in translation.notes]
    return dict(translation.config)


def _document(text: str, draft: JobDraft) -> Document:
    try:
        found = parsed(text)
    except ValueError as error:
        draft.errors[JSON] = str(error)
        return {"": text}
    if isinstance(found, dict):
        return found
    draft.errors[JSON] = "must be an object: {...}"
    return {"": text}


def _first(posted: Mapping[str, list[str]], name: str) -> str:
    return posted.get(name, [""])[0].strip()


def _labels(text: str) -> dict[str, str]:
    found = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        key, sign, value = line.partition("=")
        if not sign or not key.strip():
            raise InvalidRequestError(f"{line[:100]!r} is not a label. Write KEY=VALUE.", pointer="/labels")
        found[key.strip()] = value.strip()
    return found


def _hand_over(text: str) -> Any:
    try:
        return parsed(text)
    except ValueError as error:
        raise InvalidRequestError(f"The hand-over is {error}.", pointer=f"/{HAND_OVER}") from None


def _priority(text: str) -> int | str:
    try:
        return json.loads(text) if text else 0
    except ValueError:
        return text
