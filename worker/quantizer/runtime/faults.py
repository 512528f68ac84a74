"""What a failed run means: whose fault it is, and which node, input and sample are concerned."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as state

from service.contracts.errors import DatasetMismatchError, EngineError, QuantmillError, UnsupportedModelError

# onnxruntime raises these, all plain Exception subclasses of its own module.
RUNTIME_ERRORS = (
    state.EPFail,
    state.Fail,
    state.InvalidArgument,
    state.InvalidGraph,
    state.InvalidProtobuf,
    state.NotImplemented,
    state.RuntimeException,
    RuntimeError,  # what has no Python counterpart
)

_NODE = re.compile(r"while running (?P<op>\w+) node\. Name:'(?P<node>[^']*)'")
_FED = re.compile(r"(?:for input: |input name: )'?(?P<input>[^\s']+)")
_INDEX = re.compile(r"\b(?:idx|index)\s*[=:]?\s*(?P<index>-?\d+)")
_BOUNDS = ("out of data bounds", "out of bounds", "index out of range", "invalid index")
_UNFIT_FEEDS = ("Got invalid dimensions for input", "Invalid rank for input", "Unexpected input data type")
_CODES = ("FAIL", "INVALID_GRAPH", "INVALID_ARGUMENT", "NOT_IMPLEMENTED")
_BEFORE_THE_REASON = ("Status Message: ", *(f" : {code} : " for code in _CODES))
# A convolution that the runtime has rewritten for its own memory layout bears the name of its output tensor.
_LAYOUT_SUFFIX = "_nchwc"
_SOURCE_PLACE = re.compile(r"\S*onnxruntime\S*\.(?:cc|h|cpp):\d+ .*? was false\. ")


def failed_run(
    error: Exception,
    *,
    what: str,
    feeds: Mapping[str, np.ndarray],
    numbers: Sequence[int] | None,
    uploaded: bool,
    dynamic: bool,
) -> QuantmillError:
    """The typed error for an exception of onnxruntime.

    Args:
        error: what the runtime raised.
        what: the model that ran, in words.
        feeds: what it was fed.
        numbers: of the samples in ``feeds``, if known.
        uploaded: True if the model is the user's own, False if the engine made it.
        dynamic: True if its inputs leave more than the first axis open.
    """
    text = " ".join(str(error).split())
    reason = cleaned(text)
    where: dict[str, Any] = {**_node(text)}
    words = f"onnxruntime failed to run {_words(where)}the {what}: {reason}"
    if any(mark in text.lower() for mark in _BOUNDS):
        found = _INDEX.search(reason)
        culprit: dict[str, Any] = _fed_value(int(found["index"]), feeds, numbers) if found else {}
        told = f"; it is in input {culprit['input']!r}" if culprit else ""
        told += f" in sample {culprit['sample']}" if "sample" in culprit else ""
        return DatasetMismatchError(
            words + told,
            hint="The data contains an index (a token or class number) beyond the model's table: check the "
            "vocabulary of the data.",
            **where,
            **culprit,
        )
    if any(mark in text for mark in _UNFIT_FEEDS):
        fed = _FED.search(text)
        return DatasetMismatchError(
            words, hint="Give data of the shape and type that the model declares.", input=fed["input"] if fed else None
        )
    if not uploaded:
        return EngineError(
            words, hint="Report the model and the config; excluding the node may get around it.", **where
        )
    if dynamic:
        return DatasetMismatchError(
            words,
            hint="Its inputs have dynamic axes: give data of a size that the model can take, and the same size for "
            "every sample.",
            **where,
        )
    return UnsupportedModelError(
        words, hint="The model does not run on data of its own input shape: export it again.", **where
    )


@dataclass(frozen=True)
class Culprit:
    """A node that the runtime blames, and what it says of it."""

    node: str
    words: str


def culprit_among(error: QuantmillError, names: Collection[str]) -> Culprit | None:
    """The one of some nodes that an error of the runtime is about: by its place, or by its words; None: none of them.

    Args:
        error: made of an error of the runtime.
        names: of the nodes.
    """
    words = error.detail.split(": ", 1)[-1]
    if error.where.get("node") in names:
        return Culprit(str(error.where["node"]), words)
    found = [name for name in names if f"({name})" in error.detail or f"'{name}'" in error.detail]
    return Culprit(max(found, key=len), words) if found else None


def cleaned(message: str) -> str:
    """Onnxruntime's message without its code prefix and source paths, one line."""
    text = " ".join(message.split())
    for mark in _BEFORE_THE_REASON:
        text = text.split(mark, 1)[-1]
    return _SOURCE_PLACE.sub("", text).strip()[:500]


def _node(text: str) -> dict[str, str]:
    """Node and operator that the message names; the output tensor where it names that."""
    found = _NODE.search(text)
    if found is None:
        return {}
    name = found["node"]
    if name.endswith(_LAYOUT_SUFFIX):
        return {"tensor": name.removesuffix(_LAYOUT_SUFFIX), "op_type": found["op"]}
    return {"node": name, "op_type": found["op"]} if name else {"op_type": found["op"]}


def _words(where: Mapping[str, str]) -> str:
    if "node" in where:
        return f"node {where['node']!r} ({where['op_type']}) of "
    if "tensor" in where:
        return f"the {where['op_type']} node that makes tensor {where['tensor']!r} of "
    return f"an unnamed {where['op_type']} node of " if where else ""


def _fed_value(index: int, feeds: Mapping[str, np.ndarray], numbers: Sequence[int] | None) -> dict[str, Any]:
    """The integer input that holds ``index``, and the sample; nothing unless exactly one input does."""
    holders = {name: array for name, array in feeds.items() if array.dtype.kind in "iu" and (array == index).any()}
    if len(holders) != 1:
        return {}
    ((name, array),) = holders.items()
    if not numbers or not array.ndim:
        return {"input": name}
    row = int(np.argwhere(array == index)[0][0])
    return {"input": name, "sample": numbers[min(row, len(numbers) - 1)]}  # rows that fill up repeat the last one
