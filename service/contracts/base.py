"""What contracts are made of: closed records, texts of people, JSON pointers, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from rapidfuzz import fuzz, process

# Key in a field's json_schema_extra: values of the knob that are worth a try; it stands in the JSON schema as well.
SEARCH_SPACE = "search"

_Record = TypeVar("_Record", bound=BaseModel)


class Contract(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


def read_stored(record: type[_Record], document: Any) -> _Record:
    """The record of a document that the database keeps; what it does not know is left out, at every level.

    A process of a newer version, beside this one while a service is updated, may have written more than this one knows.
    What a process is to carry out (configs, templates, the gate that a run is judged by) is not read so: to leave out
    a part of an order would be to do something else.
    """
    return record.model_validate(document, extra="ignore")


# Errors about a field, a kind or a word that this version does not have.
_UNKNOWN = frozenset({"extra_forbidden", "union_tag_invalid", "literal_error", "enum"})


def may_be_newer(error: ValidationError) -> bool:
    """Whether an order was refused for what this version does not know: a newer one may have written it, and can do it.

    It is left to a process of that version, which stands beside this one while a service is updated.
    """
    return any(one["type"] in _UNKNOWN for one in error.errors(include_url=False, include_input=False))


def declared_values(record: type[Contract], key: str) -> dict[str, tuple[Any, ...]]:
    """The values that stand under ``key`` in a field's json_schema_extra, by field, of the fields that have some."""
    found = {}
    for name, field in record.model_fields.items():
        extra = field.json_schema_extra
        values = extra.get(key) if isinstance(extra, dict) else None
        if isinstance(values, list):
            found[name] = tuple(values)
    return found


def search_space(record: type[Contract]) -> dict[str, tuple[Any, ...]]:
    """The values that are worth a try, by field, of the fields that declare some."""
    return declared_values(record, SEARCH_SPACE)


_BETWEEN = dict.fromkeys(map(ord, "\n\r\t"), " ")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plain_text(value: str) -> str:
    """Refuse control characters, which databases and terminals disagree about."""
    if _CONTROL.search(value):
        raise ValueError("must not contain control characters")
    return value


def text_of_lines(value: str) -> str:
    """Refuse control characters, but for what parts lines and columns."""
    plain_text(value.translate(_BETWEEN))
    return value


Text = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(plain_text)]
Description = Annotated[str, Field(max_length=4000), AfterValidator(text_of_lines)]


def below(pointer: str, *parts: str | int) -> str:
    """The pointer of something within what stands at ``pointer``."""
    return pointer + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


# Similarity in percent from which on a name is offered. Keys are few and alike: below 60 "overrides" is as near to
# "algorithms" as to others.
_CLOSE_KEY, _CLOSE_NAME = 60.0, 45.0
_STEM_CHARS = 3
# What is longer is no slip of the pen; of more names the first are looked at.
_MOST_CHARS, _MOST_NAMES = 300, 20_000
# Beyond so many wrong names of one request nobody reads what each may have meant.
MOST_SUGGESTIONS = 5


def nearest_key(key: str, names: Iterable[str]) -> str | None:
    """The key that was probably meant, if any; case, hyphens and underscores do not count."""
    if len(key) > _MOST_CHARS:
        return None
    folded = {_fold(name): name for name in names}
    wanted = _fold(key)
    found = process.extractOne(wanted, folded.keys(), scorer=fuzz.ratio, score_cutoff=_CLOSE_KEY)
    close = [] if found is None else [found[0]]
    if not close and len(wanted) >= _STEM_CHARS:
        close = [name for name in folded if name.startswith(wanted) or wanted.startswith(name)]
    return folded[close[0]] if close else None


def nearest_name(wanted: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like ``wanted``, letter case aside."""
    if len(wanted) > _MOST_CHARS:
        return None
    short = islice((name for name in known if len(name) <= _MOST_CHARS), _MOST_NAMES)
    folded = {name.casefold(): name for name in sorted(short)}
    found = process.extractOne(wanted.casefold(), folded.keys(), scorer=fuzz.ratio, score_cutoff=_CLOSE_NAME)
    return None if found is None else folded[found[0]]


def _fold(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


VERSION = "0.1.0"


LABEL_KEY = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"
LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY)]
LabelValue = Annotated[str, StringConstraints(max_length=255), AfterValidator(plain_text)]
# Of a job; of a model or a dataset.
MOST_LABELS, MOST_TAGS = 32, 64
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=MOST_LABELS)]
Tags = Annotated[dict[LabelKey, LabelValue], Field(max_length=MOST_TAGS)]


# The newest ready version of a name; no alias is called so.
LATEST = "latest"
MOST_ALIAS_CHARS = 64
MOST_NAME_CHARS = 200
# A name, the sign, and an alias, which is longer than a number or LATEST.
MOST_REFERENCE_CHARS = MOST_NAME_CHARS + 1 + MOST_ALIAS_CHARS
MOST_VERSION = 2**31 - 1
SIGN = "@"
ALIAS = r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*"
_ALIAS = re.compile(ALIAS)
_VERSION = re.compile(r"[1-9][0-9]{0,9}")


@dataclass(frozen=True)
class Reference:
    """``NAME@3``, ``NAME@latest`` or ``NAME@prod``: a name with either a version or a word, which may be LATEST."""

    name: str
    version: int | None = None
    word: str | None = None

    def __str__(self) -> str:
        return f"{self.name}{SIGN}{self.version if self.word is None else self.word}"


def parse(text: str) -> Reference | None:
    """The reference that ``text`` is; None for anything else. Names may hold the sign: the last one parts them."""
    name, sign, rest = text.rpartition(SIGN)
    if not sign or not is_name(name):
        return None
    if _VERSION.fullmatch(rest) and int(rest) <= MOST_VERSION:
        return Reference(name, version=int(rest))
    return Reference(name, word=rest) if rest == LATEST or is_alias(rest) else None


def is_alias(word: str) -> bool:
    """True for what may be an alias: words of lower-case letters and digits, joined by single ``.``, ``_`` or ``-``."""
    return len(word) <= MOST_ALIAS_CHARS and word != LATEST and _ALIAS.fullmatch(word) is not None


def is_name(text: str) -> bool:
    """True for what may be a name: what may not is not looked for."""
    try:
        plain_text(text)
    except ValueError:
        return False
    return 1 <= len(text) <= MOST_NAME_CHARS
