"""Texts that users see are in the field's words; ``python -m tools.texts`` lists them."""

import re

from tools.texts import KINDS, ROOT, Text, texts

# What a text must not say, and what it says in its place. Patterns are for lower case.
OLD_WORDS = {
    r"likeness|\bdecides? as\b": "top-1 agreement",
    r"changed? sides|changed answers": "prediction flips",
    r"float was sure": "float confidence",
    r"guessing would|guessing reaches": "chance level",
    r"within chance|by chance\b": "not significant",
    r"time of one run|\ba float run\b": "latency, FP32 latency",
    r"\btakes? (\d|\{\})[^ ]*x? as long|x as fast": "1.80x slower, 1.80x faster",
    r"\bheld against\b": "compared with, the baseline",
    r"of the file are gone": "smaller",
    r"runs as one with": "fused with",
    r"own part of all error": "error contribution",
    r"rounded coarsely": "bias quantization error",
    r"cut off silent": "prune dead channels",
    r"what was asked for|as (it was )?asked for": "configuration, as requested",
    r"read this first": "findings",
    r"do this again": "reproduce",
    r"\b(record of (all )?|all )deeds\b|\bdeeds?\b": "audit log",
    r"by the clock|\bthe clock\b(?! of)": "by a schedule",
    r"\btold of\b|\btells? (of|that|how|why|what|which|whether|nothing|more|it)\b": "says, shows, notified of",
    r"\bis told\b|\bnot to be told\b": "is shown, reported",
    r"\b(is|are) no use\b|\bof no use\b": "cannot be used",
    r"\b(is|are|was) (not )?good( here)?\b(?! (for|enough|at|to))": "valid",
    r"\bstands? (under|in|at|on|here|there|outside|first|for itself|by itself|idle)\b": "is in",
    r"\blies? (under|in|at|beside|outside|between)\b": "is in",
    r"\bas many as (may|there may|it may)\b": "the limit is",
    r"\bfell silent\b|\bfall silent\b": "stopped responding",
    r"front desk|workshop|\bstranger": "API server, worker",
    r"\brooms?\b(?! (left|for|on))": "module, package",
    r"\banew\b": "again",
    r"\bbears?\b|\bbore\b": "has",
    r"name holds|holds no|holds a\b|holds an\b|file holds": "contains",
    r"no job is like|no such job": "no matching jobs, job not found",
    r"put in here": "changes from source job",
    r"\bmend(s|ed)?\b": "fix",
    r"\bthere is more\b": "also available",
    r"\bmade of\b": "created from, provenance",
    r"\bis no (file|folder|json|url|number|object|onnx|model|tag|statement|array|name|list|key|module)\b": "is not a",
    r"\bthose that (there are|are good)\b": "",
    r"\btake (it|them) away\b|\btaken away\b": "remove, delete",
    r"\bgoes? on\b": "continues",
    r"\bheeded?\b": "applied",
    r"\bwhatever (it|they) (is|are)\b": "",
}

# Words of other people's, and the same word as a term of something else.
ALLOWED = {
    ("docs/benchmarks.md", r"\bmade of\b"),
}


def _faults(text: Text) -> list[str]:
    said = text.text.lower()
    return [
        f"{text.path}:{text.line}: {match[0]!r} in {text.text[:100]!r}: say {instead!r}"
        for pattern, instead in OLD_WORDS.items()
        if (match := re.search(pattern, said)) and (text.path, pattern) not in ALLOWED
    ]


def test_no_text_says_an_old_word() -> None:
    found = [fault for text in texts() for fault in _faults(text)]

    assert not found, "\n".join([*found[:40], f"{len(found)} in all"])


def test_each_kind_of_text_is_found() -> None:
    """The net has no hole where a kind of file is no longer read."""
    assert {text.kind for text in texts(ROOT)} == set(KINDS)


def test_the_glossary_stays_short_and_is_linked() -> None:
    terms = re.findall(r"^### (.+)$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "glossary.md#" in path.read_text()]

    assert len(set(terms)) == len(terms) <= 60
    assert len(pages) >= 10
