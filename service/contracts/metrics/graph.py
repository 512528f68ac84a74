"""Metrics as a graph or a function of the user's."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.contracts.base import MOST_REFERENCE_CHARS, Contract, below
from service.contracts.metrics.base import ArrayName, Better, LabelRef, MetricBase, MetricFacts, OfOutput, OutputRef
from service.contracts.validation import BELOW

MAX_INLINE_BYTES = 1 << 20


class GraphSource(Contract):
    """Source of the graph: inline in the config, or an uploaded model."""

    base64: str | None = Field(
        default=None, description=f"The .onnx file, at most {MAX_INLINE_BYTES} bytes, in base64."
    )
    model_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_REFERENCE_CHARS,
        description="A validated model: its id, or NAME@VERSION, NAME@ALIAS or NAME@latest.",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_path(cls, data: Any) -> Any:
        if isinstance(data, dict) and "path" in data:
            told = "a path is for the command line, which reads the file: give it as base64, or as a model_id"
            raise PydanticCustomError("value_error", "{why}", {"why": told, BELOW: "/path"})
        return data

    @field_validator("base64")
    @classmethod
    def _decodable(cls, text: str | None) -> str | None:
        if text is not None:
            if len(text) > 4 * -(-MAX_INLINE_BYTES // 3):
                raise ValueError(
                    f"the graph is larger than {MAX_INLINE_BYTES} bytes; upload it as a model and give its model_id"
                )
            if not _decoded(text):
                raise ValueError("the graph is empty")
        return text

    @model_validator(mode="after")
    def _one_of_both(self) -> GraphSource:
        if (self.base64 is None) == (self.model_id is None):
            raise ValueError("give the graph as base64, or the model_id of an uploaded one")
        return self

    @property
    def inline(self) -> bytes | None:
        """The file, if it is in the config."""
        return None if self.base64 is None else _decoded(self.base64)


def _decoded(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the graph is not base64 text: {error}") from None
    if len(data) > MAX_INLINE_BYTES:
        raise ValueError(
            f"the graph has {len(data)} bytes; at most {MAX_INLINE_BYTES} go into a config: upload it as a model and "
            "give its model_id"
        )
    return data


class GraphInput(Contract):
    """Source of one graph input; set exactly one field."""

    output: OutputRef | None = Field(default=None, description="An output of the model under evaluation.")
    reference: OutputRef | None = Field(default=None, description="The same output of the float model.")
    array: ArrayName | None = Field(default=None, description="An array of the dataset.")

    @model_validator(mode="after")
    def _exactly_one(self) -> GraphInput:
        if sum(value is not None for value in (self.output, self.reference, self.array)) != 1:
            raise ValueError("give one of output, reference and array")
        return self


class GraphMetric(MetricBase):
    """A metric computed by an ONNX graph, batch by batch. Inputs are bound by name: to the model's output of that name,
    to the dataset's labels if the name is ``labels``, else to the array of that name; ``inputs`` overrides this.

    With one scalar output, the metric is the mean over all samples (the value of each batch, weighted by its number of
    samples). With two outputs, a sum and a count, it is the total of the sums divided by the total of the counts. The
    last batch may be smaller than the others.
    """

    kind: Literal["onnx"] = "onnx"
    graph: GraphSource
    inputs: dict[str, GraphInput] = Field(
        default_factory=dict, max_length=64, description="Sources by name of the graph's input."
    )
    better: Better = Field(default="higher", description="Whether higher or lower values are better.")
    unit: str = Field(default="", max_length=16, description="Unit in reports; with '%', differences are in points.")

    @property
    def facts(self) -> MetricFacts:
        """As declared."""
        return MetricFacts(self.unit, self.better)

    @property
    def reads_reference(self) -> bool:
        """True if an input is fed with it."""
        return reads_reference(self.inputs)

    def output_refs(self) -> dict[str, int | str]:
        """Those that ``inputs`` names."""
        return named_outputs(self.inputs)

    def label_refs(self) -> dict[str, LabelRef]:
        """Those that ``inputs`` names."""
        return named_arrays(self.inputs)


def reads_reference(inputs: Mapping[str, GraphInput]) -> bool:
    """True if an input of a graph is fed with an output of the float model."""
    return any(given.reference is not None for given in inputs.values())


def named_outputs(inputs: Mapping[str, GraphInput]) -> dict[str, int | str]:
    """The model outputs that feed inputs of a graph, by place as in ``MetricBase.output_refs``."""
    found: dict[str, int | str] = {}
    for name, given in inputs.items():
        for word, ref in (("output", given.output), ("reference", given.reference)):
            if ref is not None:
                found[_place(name, word)] = ref
    return found


def named_arrays(inputs: Mapping[str, GraphInput]) -> dict[str, LabelRef]:
    """The arrays of the dataset that feed inputs of a graph, by place as in ``MetricBase.label_refs``."""
    return {
        _place(name, "array"): LabelRef(given.array, False) for name, given in inputs.items() if given.array is not None
    }


def _place(name: str, word: str) -> str:
    return below("", "inputs", name, word).removeprefix("/")


class FunctionMetric(OfOutput):
    """A metric computed by a Python function that is passed together with the config in the same process. It is called
    once per model with one output over all samples, in order; with ``against_float`` the float model's output is the
    first argument. A service does not run user functions and refuses this metric.
    """

    WHOLE: ClassVar[bool] = True

    kind: Literal["function"] = "function"
    better: Better = Field(default="higher", description="Whether higher or lower values are better.")
    unit: str = Field(default="", max_length=16, description="Unit in reports; with '%', differences are in points.")
    against_float: bool = Field(
        default=False,
        description="Pass the float model's output and the quantized model's output to the function, for distances.",
    )

    @property
    def facts(self) -> MetricFacts:
        """As declared; a distance is 0 for the same output."""
        return MetricFacts(self.unit, self.better, self.against_float, 0.0 if self.against_float else None)
