"""Models and forms that were measured beside the planned ones, in words."""

from __future__ import annotations

from dataclasses import dataclass

from service.contracts.report import Fallback, FallbackCandidate, Interval, KernelFigures, Kernels
from service.reports.figures import count, figure, milliseconds, size, times

_HOLDS = {True: "all hold", False: "broken", None: "not measured"}
_FORMS = {"standard": "DequantizeLinear and MatMul", "matmul_nbits": "com.microsoft.MatMulNBits"}


@dataclass(frozen=True)
class CandidateRow:
    """A model that might be returned."""

    words: str
    result: str
    latency: str
    size: str
    holds: str


@dataclass(frozen=True)
class FormRow:
    """A form of products."""

    form: str
    latency: str
    ratio: str
    sqnr: str


@dataclass(frozen=True)
class FallbackWords:
    """What was tried because the quantized model was too slow."""

    sentences: tuple[str, ...]
    candidates: tuple[CandidateRow, ...]

    @classmethod
    def of(cls, told: Fallback) -> FallbackWords:
        """For a page."""
        return cls(sentences(told), candidates(told))


@dataclass(frozen=True)
class KernelWords:
    """Both forms of products."""

    words: str
    rows: tuple[FormRow, ...]

    @classmethod
    def of(cls, told: Kernels) -> KernelWords:
        """For a page."""
        return cls(kernels_words(told), forms(told))


def sentences(told: Fallback) -> tuple[str, ...]:
    """Why a faster model was looked for, what was tried, and what is returned."""
    tried = sum(1 for region in told.regions if region.outcome != "untried")
    off = sum(1 for region in told.regions if region.outcome == "taken_off")
    regions = (
        f"No Q/DQ pairs were taken off: {told.why_no_regions}."
        if told.why_no_regions is not None
        else f"{tried} of {count(len(told.regions), 'region')} tried without their Q/DQ pairs, {off} taken off."
    )
    return f"{_sentence(told.because)}.", regions, f"{_sentence(told.reason)}."


def candidates(told: Fallback) -> tuple[CandidateRow, ...]:
    """Every model that might be returned."""
    return tuple(
        CandidateRow(
            words=_candidate_words(candidate),
            result="returned" if candidate.chosen else "",
            latency=times(candidate.latency_ratio) + _span(candidate.latency_interval),
            size=size(candidate.size_bytes),
            holds=_HOLDS[candidate.holds] if candidate.gate or candidate.holds is None else "there are none",
        )
        for candidate in told.candidates
    )


def forms(told: Kernels) -> tuple[FormRow, ...]:
    """Both forms, where they were measured."""
    return tuple(
        FormRow(
            form=_form_words(form),
            latency=milliseconds(form.latency_ms),
            ratio=times(form.ratio) + _span(form.ratio_interval),
            sqnr=figure(form.sqnr_db, "dB"),
        )
        for form in told.forms
    )


def kernels_words(told: Kernels) -> str:
    """What the figures of both forms are, or why there are none."""
    products = f"{count(told.products, 'product')} may be written in either form"
    if told.reason is not None:
        return f"{products}; they were not compared: {told.reason}."
    return f"{products}; SQNR is measured on {count(told.forms[0].samples, 'sample')} as onnxruntime runs each."


def _candidate_words(candidate: FallbackCandidate) -> str:
    if candidate.kind == "planned":
        return "quantized as planned"
    if candidate.kind == "float":
        return "the float model"
    return f"quantized without {count(candidate.nodes_taken_off, 'node')}"


def _form_words(form: KernelFigures) -> str:
    level = "" if form.accuracy_level is None else f", level {form.accuracy_level}"
    return f"{_FORMS[form.form]}{level}{' (this file)' if form.emitted else ''}"


def _span(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval.low:.2f} to {interval.high:.2f})"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
