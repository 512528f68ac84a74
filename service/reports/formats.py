"""The forms that a report comes in beside JSON: what each is called, where it is served, and who writes it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Literal

from service.contracts.base import VERSION
from service.contracts.report import Report
from service.reports.html import html
from service.reports.junit import junit
from service.reports.layers import layers_csv
from service.reports.markdown import markdown

FormatName = Literal["html", "markdown", "junit", "layers_csv"]


@dataclass(frozen=True)
class ReportFormat:
    """One form."""

    path: str  # below ``/v1/jobs/{job_id}/``
    suffix: str  # of a file's name
    media_type: str  # with its charset; all are UTF-8
    render: Callable[[Report], str]  # writes the whole document


FORMATS: dict[FormatName, ReportFormat] = {
    "html": ReportFormat("report.html", ".html", "text/html; charset=utf-8", html),
    "markdown": ReportFormat("report.md", ".md", "text/markdown; charset=utf-8", markdown),
    "junit": ReportFormat("report.junit.xml", ".junit.xml", "application/xml; charset=utf-8", junit),
    "layers_csv": ReportFormat(
        "report/layers.csv", ".layers.csv", "text/csv; charset=utf-8; header=present", layers_csv
    ),
}


def rendered(report: Report, form: FormatName) -> bytes:
    """The document in UTF-8. What is shown holds no lone surrogates: each form has replaced them."""
    return FORMATS[form].render(report).encode()


@cache
def renderer_version() -> str:
    """Changes with every change of how reports are written, so that nobody keeps a page of an older renderer."""
    digest = hashlib.sha256(VERSION.encode())
    for file in (*_sources(resources.files("service.reports")), resources.files("service.contracts") / "changes.py"):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _sources(folder: Traversable) -> list[Traversable]:
    found = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found += _sources(entry) if entry.name != "__pycache__" else []
        else:
            found.append(entry)
    return found
