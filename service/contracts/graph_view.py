"""Views of a model: its graph as people look at it, and what a target would run on integers, told without data."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from service.contracts.base import Contract
from service.contracts.config import Mode
from service.contracts.targets import TargetName

GRAPH_KIND, GRAPH_FILE = "graph", "graph.json"
# Larger graphs have no file: nobody would look at them, and a page has to read all of it.
MOST_NODES = 20_000
MOST_BYTES = 16 * 1024 * 1024
NAME_CHARACTERS = 256
_DIGEST_CHARACTERS = 12
MOST_MODULES = 64
MOST_DIMENSIONS = 32

Name = Annotated[str, StringConstraints(max_length=NAME_CHARACTERS)]


class TensorGrid(Contract):
    """The grid of a tensor: what its QuantizeLinear and DequantizeLinear pair rounds to."""

    dtype: Name = Field(description="Such as uint8.")
    scales: int = Field(default=0, ge=0, description="How many scales: 1 for the whole tensor; 0: the type has none.")
    scale_low: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="Smallest scale.")
    scale_high: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="Largest scale.")
    zero_point: int | None = Field(default=None, description="Null: the type has none, or the scales have several.")
    axis: int | None = Field(default=None, description="Along which scales differ; null: one scale, or none.")


class GraphTensor(Contract):
    """An input or output of a node."""

    name: Name
    dtype: Name | None = Field(default=None, description="Data type, such as float32; null if unknown.")
    shape: tuple[int | Name | None, ...] | None = Field(
        default=None,
        max_length=MOST_DIMENSIONS,
        description="Axes: a number, the name of a dynamic axis, or null for an unnamed one. Null if the shape is "
        "unknown.",
    )
    constant: bool = Field(default=False, description="True if the value is stored in the model.")
    grid: TensorGrid | None = Field(
        default=None, description="Null: no Q/DQ pair, or the file is of an older release, which kept none."
    )


class GraphNode(Contract):
    """A node of the graph or of a subgraph; tensors are referenced by their index in the list of tensors."""

    name: Name
    op: Name
    modules: tuple[Name, ...] = Field(
        default=(), max_length=MOST_MODULES, description="PyTorch modules that contain it, outermost first."
    )
    inputs: tuple[int | None, ...] = Field(
        default=(), description="Indices of the input tensors; null for an omitted optional input."
    )
    outputs: tuple[int, ...] = ()
    inside: Name | None = Field(default=None, description="The node whose sub-graph contains it; null: the main graph.")


class GraphView(Contract):
    """The prepared float graph as it was planned.

    Nodes are in topological order, those of sub-graphs after the node that contains them.
    """

    inputs: tuple[int, ...] = Field(default=(), description="Indices of the graph's inputs in the list of tensors.")
    outputs: tuple[int, ...] = ()
    tensors: tuple[GraphTensor, ...] = ()
    nodes: tuple[GraphNode, ...] = Field(default=(), max_length=MOST_NODES)

    def to_bytes(self) -> bytes:
        """As it is stored: the same graph gives the same bytes."""
        body = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


class GraphUnreadableError(ValueError):
    """The file is not a graph in the format of the engine."""


def read_graph(data: bytes) -> GraphView:
    """A graph as it was stored; the file was written beside a client's model, so nothing of it is believed.

    Raises:
        GraphUnreadableError: it is too large, of another form, or tells of tensors that are not there.
    """
    if len(data) > MOST_BYTES:
        raise GraphUnreadableError(f"it has more than {MOST_BYTES} bytes")
    try:
        view = GraphView.model_validate_json(data)
    except ValidationError as error:
        raise GraphUnreadableError(f"it has {error.error_count()} fields that are not right") from error
    count = len(view.tensors)
    places = [*view.inputs, *view.outputs]
    for node in view.nodes:
        places += [place for place in (*node.inputs, *node.outputs) if place is not None]
    if places and not 0 <= min(places) <= max(places) < count:
        raise GraphUnreadableError("it describes a tensor that does not exist")
    return view


def cut_name(text: str) -> str:
    """A name as the graph holds it; long ones are cut, and a digest keeps them apart."""
    if len(text) <= NAME_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{text[: NAME_CHARACTERS - _DIGEST_CHARACTERS - 1]}…{digest}"


class NodeInspection(Contract):
    """How one node would be quantized."""

    name: str = Field(description="Name in the uploaded model, if the node had one there.")
    op: str = Field(description="Operator type in the uploaded model.")
    quantized: bool = Field(description="Whether it will be quantized; with an activation_reason, only its weight.")
    reason: str | None = Field(description="Why the node stays in float; for a quantized node, what replaces it.")
    reason_code: str | None = Field(
        default=None, description="Stable code of the reason for staying in float; docs/reasons.md lists all codes."
    )
    activation_reason: str | None = Field(
        default=None, description="Why the activations stay in float although the weight is quantized."
    )
    activation_reason_code: str | None = None
    hint: str | None = Field(description="What would help, or why no change is needed.")
    by_design: bool = Field(
        default=False, description="True if the node stays in float by design: no change is needed."
    )


class Inspection(Contract):
    """How every node of a prepared model would be quantized."""

    schema_version: Literal[1] = 1
    target: TargetName
    mode: Mode
    model_sha256: str
    engine_version: str
    summary: str = Field(description="Summary in one sentence.")
    node_count: int
    quantized_count: int
    nodes: tuple[NodeInspection, ...] = Field(description="Nodes in the order of the prepared network.")
    notes: tuple[str, ...] = ()
