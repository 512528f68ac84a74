"""The one error tree. Every failure a user can meet is a ``QuantmillError`` with a stable ``code``.

An error says what was wrong (``detail``), where (``errors``: JSON pointers into the request, or the name of a header
or parameter; ``where``: node, tensor, field, offset) and what to do next (``hint``). Over HTTP it becomes RFC 9457
problem+json; a failed job stores the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

InputPlace = Literal["header", "query", "path"]


class FieldProblem(BaseModel):
    """One offending place in the input.

    A place in the body (or, if the body is a file's bytes, in the upload that they belong to) is named by
    ``pointer``; one in a header, in the query or in the path has pointer "" and is named by ``where``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pointer: str = Field(description="JSON pointer (RFC 6901) into the request document; '' is the whole document.")
    code: str
    message: str
    where: dict[InputPlace, str] | None = Field(
        default=None,
        description="Only for places outside the body: {'header': NAME}, {'query': NAME} or {'path': NAME}.",
        examples=[{"header": "Upload-Offset"}],
    )


def problem_summary(problems: Sequence[FieldProblem]) -> str:
    """The first five problems in one line, each behind its pointer; "/" is the whole document."""
    return "; ".join(f"{problem.pointer or '/'}: {problem.message}" for problem in problems[:5])


def relocated(problems: Sequence[FieldProblem], place: Callable[[str], str]) -> tuple[FieldProblem, ...]:
    """The problems with their pointers moved by ``place``; those that stand outside of documents stay."""
    return tuple(
        problem if problem.where else problem.model_copy(update={"pointer": place(problem.pointer)})
        for problem in problems
    )


class Problem(BaseModel):
    """RFC 9457 problem object, as returned over HTTP and stored with failed jobs and rejected models and datasets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str | None = None
    request_id: str | None = None
    hint: str | None = Field(default=None, description="What to do next.")
    where: dict[str, Any] = Field(default_factory=dict, description="Node, tensor, field or byte offset of the error.")
    errors: tuple[FieldProblem, ...] = ()


class QuantmillError(Exception):
    """Base of all errors that a user may see.

    Args:
        detail: what was wrong, in words of the user's world.
        hint: what to do next.
        pointer: JSON pointer of the offending field, if the input was a document.
        header, query, path_parameter: name of the offending header or parameter, if it was one of these.
        errors: several offending fields at once; overrides the four before.
        where: node, tensor, field, offset: anything that locates the fault.
    """

    code: str = "internal-error"
    title: str = "Internal error"
    status: int = 500
    request_id: str | None = None

    def __init_subclass__(
        cls, *, code: str | None = None, title: str | None = None, status: int | None = None, **kwargs: Any
    ) -> None:
        """Takes what a class says of itself as keywords: ``class NotOnnxError(ModelError, code="not-onnx")``."""
        super().__init_subclass__(**kwargs)
        for name, value in (("code", code), ("title", title), ("status", status)):
            if value is not None:
                setattr(cls, name, value)

    def __init__(
        self,
        detail: str,
        *,
        hint: str | None = None,
        pointer: str | None = None,
        header: str | None = None,
        query: str | None = None,
        path_parameter: str | None = None,
        errors: tuple[FieldProblem, ...] = (),
        **where: Any,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        if hint is not None:
            self.add_note(f"hint: {hint}")  # shown behind a traceback, as in a notebook
        self.where = {key: value for key, value in where.items() if value is not None}
        outside: dict[InputPlace, str | None] = {"header": header, "query": query, "path": path_parameter}
        named = {place: name for place, name in outside.items() if name is not None}
        if not errors and (pointer is not None or named):
            errors = (FieldProblem(pointer=pointer or "", code=self.code, message=detail, where=named or None),)
        self.errors = errors

    def relocate(self, place: Callable[[str], str]) -> None:
        """Have the error point into another document than the one that was checked.

        Args:
            place: the pointer into that document for one into the document that was checked.
        """
        moved = relocated(self.errors, place)
        if self.detail == problem_summary(self.errors):
            self.detail = problem_summary(moved)
        self.errors = moved

    def reword(self, rewrite: Callable[[str], str]) -> None:
        """Have its sentences in the words of another surface."""
        if self.hint is not None:
            hint = rewrite(self.hint)
            notes: list[str] = getattr(self, "__notes__", [])
            notes[:] = [f"hint: {hint}" if note == f"hint: {self.hint}" else note for note in notes]
            self.hint = hint
        self.detail = rewrite(self.detail)
        self.args = (self.detail,)
        self.errors = tuple(one.model_copy(update={"message": rewrite(one.message)}) for one in self.errors)

    def problem(self, *, instance: str | None = None, request_id: str | None = None) -> Problem:
        """The RFC 9457 object for this error."""
        return Problem(
            type=f"/v1/problems#{self.code}",
            title=self.title,
            status=self.status,
            detail=self.detail,
            code=self.code,
            instance=instance,
            request_id=request_id,
            hint=self.hint,
            where=self.where,
            errors=self.errors,
        )


class InvalidRequestError(QuantmillError, code="invalid-request", title="The request is not valid", status=422):
    """The request does not fit its schema; ``errors`` names each field. The schema is at /docs."""


class InvalidConfigError(
    QuantmillError, code="invalid-config", title="The quantization config is not valid", status=422
):
    """The config has an unknown key, a value out of bounds, or a contradiction; ``errors`` names each. docs/config.md
    describes every key.
    """


class ModelError(QuantmillError, code="invalid-model", title="The model cannot be used", status=422):
    """Base of everything wrong with an uploaded model."""


class NotOnnxError(ModelError, code="not-onnx", title="The file is not an ONNX model"):
    """The bytes are not an ONNX model, or are cut short. Export the model to ONNX, or copy the file again."""


class ExternalDataError(ModelError, code="external-data", title="The model's external data cannot be used"):
    """External data is missing, too short, or has a path outside the model's folder."""


class UnsupportedModelError(ModelError, code="unsupported-model", title="The model is not supported"):
    """The ONNX model is valid, but the service or its runtime cannot execute it; the error names the node."""


class TooComplexError(UnsupportedModelError, code="too-complex", title="The file is too complex"):
    """The upload exceeds a limit of size, time or memory during validation; the error names the limit."""


class NotDifferentiableError(UnsupportedModelError, code="not-differentiable", title="The network cannot be trained"):
    """An operator between the parameters and the training loss has no gradient implementation; the error names the
    node.
    """


class AlreadyQuantizedError(ModelError, code="already-quantized", title="The model is already quantized"):
    """The model contains quantized operators. Use the float model, or set ``preparation.dequantize``."""


class StateError(ModelError, code="state-mismatch", title="The weights do not fit the graph"):
    """The new weights do not match the graph of the skeleton model; the error lists every mismatched tensor."""


class ProgramError(ModelError, code="program-not-exportable", title="The exported program cannot become an ONNX model"):
    """The file is not a torch.export archive, or its program cannot be converted to ONNX."""


class Pt2NotAllowedError(
    ModelError, code="pt2-not-allowed", title="Archives of torch.export are not accepted", status=403
):
    """This service does not accept torch.export archives: loading one can execute code from its author."""

    def __init__(self, *, pointer: str | None = None) -> None:
        super().__init__(
            "Models of format pt2 are switched off on this service.",
            pointer=pointer,
            hint="Upload ONNX: quantmill.torch.export writes it. To load an archive of torch.export is to run its "
            "author's code; an operator who trusts all clients allows it by QUANTMILL_ALLOW_PT2=true, for the API and "
            "the workers.",
        )


class DatasetError(QuantmillError, code="invalid-dataset", title="The dataset cannot be used", status=422):
    """Base of everything wrong with a dataset in itself."""


class CalibrationMissingError(DatasetError, code="calibration-missing", title="Calibration data is missing"):
    """The mode or an algorithm needs calibration data, and none is given. Give a dataset, set
    ``random_calibration``, or use a preset of mode dynamic or weights_only.
    """


class DatasetFormatError(DatasetError, code="dataset-format", title="The file is not a usable dataset"):
    """The file is not a valid dataset: empty, truncated, damaged or pickled, or an archive with unsafe entries."""


class DatasetArraysError(DatasetError, code="dataset-arrays", title="The dataset's arrays cannot be used"):
    """An array of the dataset cannot be used: it is missing, has an unsupported dtype, or differs in length from the
    others.
    """


class DatasetLabelsError(DatasetError, code="dataset-labels", title="The dataset's labels cannot be used"):
    """The label array is missing, not of integers, of the wrong length, or contains negative values."""


class EmptyDatasetError(DatasetError, code="dataset-empty", title="The dataset is empty"):
    """The arrays have no samples along the first axis, or the archive no usable files. Store at least one sample."""


class DatasetMismatchError(DatasetError, code="dataset-mismatch", title="The dataset does not match the model"):
    """A dataset lacks an array for a model input, or holds one of another dtype, rank or shape, or labels outside the
    model's classes. Name arrays after the inputs, or map them in ``preprocessing``.
    """


class NonFiniteDataError(DatasetError, code="non-finite-data", title="The data holds NaN or Inf"):
    """An array contains NaN or Inf, or the model computes them from the data. Remove such samples or fix the export."""


class CanceledError(QuantmillError, code="canceled", title="The job was canceled", status=409):
    """The job was canceled on request. Retry it to run it again."""


class InterruptedRunError(CanceledError, code="interrupted", title="The run was interrupted"):
    """The worker is shutting down: the attempt ends early and is not charged."""


class PoisonError(QuantmillError, code="poison", title="The job crashes its runner", status=500):
    """Every attempt crashed the runner process. Try another model or config, and report this one."""


class StalledError(QuantmillError, code="stalled", title="The job has stalled", status=500):
    """The runner showed no progress for too long. Submit the job again; report the model if it stalls again."""


class ResourceLimitError(QuantmillError, code="resource-limit", title="A resource limit was reached", status=413):
    """The job exceeded its limit of memory, time or disk, or the memory of its GPU."""


def gpu_memory_error(
    detail: str, *, limit_bytes: int | None = None, used_bytes: int | None = None
) -> ResourceLimitError:
    """A GPU has too little memory for a job.

    Args:
        detail: what failed, one sentence.
        limit_bytes: memory of the GPU; None: unknown.
        used_bytes: what the job held when it failed; None: unknown.
    """
    return ResourceLimitError(
        detail,
        hint="Lower batch_size or data_size of the algorithms or calibration samples, use a GPU with more memory, or "
        "set the device to cpu.",
        resource="gpu_memory",
        limit_bytes=limit_bytes,
        used_bytes=used_bytes,
    )


class EngineError(QuantmillError, code="engine-error", title="The engine failed", status=500):
    """The engine failed on a valid input: a bug in the engine or in the runtime."""


class DeviceNotThereError(EngineError, code="device-not-there", title="Device not available", status=422):
    """The config requests a GPU that the machine does not have, or that the libraries cannot use. Set the device to
    cpu, or install the libraries for CUDA.
    """


@contextmanager
def of_role(role: str | None) -> Iterator[None]:
    """Have errors of a model or a dataset say what it is for, such as "calibration dataset"; None: they do not."""
    try:
        yield
    except (ModelError, DatasetError) as error:
        if role is not None:
            error.where.setdefault("role", role)
        raise
