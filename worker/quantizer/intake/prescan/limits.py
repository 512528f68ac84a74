"""How much a model may hold: named limits, what was counted, and the error that tells the number that broke one.

An object of protobuf takes two bytes in a file and hundreds in memory, once for the parser and once more for the
engine's graph. Networks of today stay a factor of ten below each limit here; weights are bounded by the file alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from service.contracts.errors import TooComplexError

MAX_NODES, MAX_FUNCTIONS = 200_000, 10_000
# A parser of protobuf goes no deeper into messages, and the runtime has its own troubles with deep sub-graphs.
MAX_NESTING = 100
MAX_SUBGRAPH_DEPTH = 8
# Functions that call functions that call functions.
MAX_CALL_DEPTH = 32
# What unfolding functions may add: so many nodes, and so many for each node of the file.
FREE_UNFOLDED_NODES, UNFOLDED_PER_NODE = 10_000, 16
MAX_UNFOLDED_BYTES = 1 << 30
MAX_NAME_BYTES = 1 << 16

# Messages by the name of their type in onnx.proto, and what users call them.
MOST_OF_A_KIND: dict[str, tuple[str, int]] = {
    "NodeProto": ("nodes", MAX_NODES),
    "AttributeProto": ("attributes", 1_000_000),
    "ValueInfoProto": ("value_infos", 500_000),
    "TensorProto": ("tensors", 400_000),
    "FunctionProto": ("functions", MAX_FUNCTIONS),
    "GraphProto": ("graphs", 50_000),
    "Dimension": ("dimensions", 2_000_000),
    "StringStringEntryProto": ("metadata_entries", 2_000_000),
}
_MOST_OF_OTHERS = 500_000
MOST: dict[str, int] = {
    "messages": 3_000_000,
    # values of packed and repeated fields: 8 bytes each in memory, where one may stand for it in the file
    "elements": 1 << 28,
    "strings": 4_000_000,
    "text_bytes": 1 << 28,
    # whatever stands behind a tag: what is looked at one by one
    "fields": 1 << 24,
}
_HINT = "Simplify the model, or split it; what is counted is told with the limits of models in the documentation."


@dataclass
class Counts:
    """What was found so far; each addition is held against its limit.

    Attributes:
        kinds: messages by the name of their type.
        totals: by the names of ``MOST``.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MOST, 0))

    def message(self, kind: str, offset: int) -> None:
        """Count one message.

        Raises:
            TooComplexError: it is one too many, of its kind or of all.
        """
        self.kinds[kind] += 1
        name, most = MOST_OF_A_KIND.get(kind, (kind, _MOST_OF_OTHERS))
        if self.kinds[kind] > most:
            raise too_complex(name, self.kinds[kind], most, offset)
        self.add("messages", 1, offset)

    def add(self, name: str, count: int, offset: int) -> None:
        """Count ``count`` more.

        Raises:
            TooComplexError: too many.
        """
        self.totals[name] += count
        if self.totals[name] > MOST[name]:
            raise too_complex(name, self.totals[name], MOST[name], offset)


def too_complex(limit: str, found: int, most: int, offset: int | None = None, **where: Any) -> TooComplexError:
    """The error for a limit that is broken.

    Args:
        limit: its name.
        found: what broke it; where counting stopped there, the least that there is.
        most: what is accepted.
        offset: in the file, bytes.
        where: what else is known of the place.
    """
    words = limit.replace("_", " ")
    return TooComplexError(
        f"the model has more than {most} {words}: {found}, counted before it was parsed",
        hint=_HINT,
        limit=limit,
        most=most,
        found=found,
        offset=offset,
        **where,
    )
