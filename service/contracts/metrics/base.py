"""What all declared metrics have in common."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from service.contracts.base import Contract

Better = Literal["higher", "lower"]
_MAX_NAME = 256
# Keys of a report and arguments of a gate.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.@+-]{0,63}$"


def _output(value: Any) -> int | str:
    if isinstance(value, str) and 0 < len(value) <= _MAX_NAME:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise PydanticCustomError("output_ref", "must be the name of a model output, or its index from 0 on")


# A union would put the names of its members into the places of errors.
OutputRef = Annotated[
    int | str,
    PlainValidator(_output),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1}]}),
]
ArrayName = Annotated[str, Field(min_length=1, max_length=_MAX_NAME)]


class MetricFacts(NamedTuple):
    """How the values of a metric are to be read."""

    unit: str = "%"  # "%", "dB", "nats", or "" for what has none or the target's own
    better: Better = "higher"  # which direction is the better one
    # it compares with the float model's output, so that the float model itself has no value
    against_float: bool = False
    # with ``against_float``: the value of a model that returns what the float model returns; None if that has no bound
    ideal: float | None = None


class LabelRef(NamedTuple):
    """An array of the dataset that a metric reads."""

    array: str | None  # its name; None: the dataset's labels
    integer: bool  # it has to hold integers


class MetricBase(Contract):
    """One declared metric. ``output_refs`` and ``label_refs`` map fields of the metric to the outputs and arrays that
    they name; the keys are JSON pointers without the leading slash.
    """

    FACTS: ClassVar[MetricFacts] = MetricFacts()
    # True for what is defined over all samples only, never over a part of them.
    WHOLE: ClassVar[bool] = False

    name: str = Field(
        default="", pattern=NAME_PATTERN, description="Name in reports and gates; default: the kind with its parameter."
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        return {**data, "name": cls.default_name(data)} if isinstance(data, dict) and "name" not in data else data

    @classmethod
    def default_name(cls, data: dict[str, Any]) -> str:
        """Its name where none is given."""
        return str(cls.model_fields["kind"].default)

    @property
    def facts(self) -> MetricFacts:
        """Unit and direction."""
        return self.FACTS

    @property
    def reads_reference(self) -> bool:
        """True if it reads the float model's outputs beside those of the measured model."""
        return self.facts.against_float

    def output_refs(self) -> dict[str, int | str]:
        """The model outputs that it reads."""
        return {}

    def label_refs(self) -> dict[str, LabelRef]:
        """The arrays of the dataset that it reads."""
        return {}


class OfOutput(MetricBase):
    """A metric of one model output."""

    output: OutputRef = Field(default=0, description="Name or index of the model output.")

    def output_refs(self) -> dict[str, int | str]:
        """The one output."""
        return {"output": self.output}


class Labelled(OfOutput):
    """A metric of one model output and one array."""

    INTEGER_LABELS: ClassVar[bool] = True

    labels: ArrayName | None = Field(
        default=None, description="Name of the array with the ground truth; null: the dataset's labels."
    )

    def label_refs(self) -> dict[str, LabelRef]:
        """The one array."""
        return {"labels": LabelRef(self.labels, self.INTEGER_LABELS)}
