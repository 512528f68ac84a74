"""Reads what an ONNX file holds without parsing it: refuses what is damaged, or more than its limits."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.contracts.errors import NotOnnxError
from worker.quantizer.intake.prescan.limits import MAX_FUNCTIONS, MOST, too_complex
from worker.quantizer.intake.prescan.schema import model_kind
from worker.quantizer.intake.prescan.unfolding import Unfolded, unfold
from worker.quantizer.intake.prescan.walk import Buffer, FunctionKey, Place, Walk, damaged, function_key
from worker.quantizer.intake.wire import BadTagError, CutShortError, model_fields, not_onnx

MAX_FILE_BYTES = (1 << 31) - 1  # protobuf's own limit
_GRAPH, _FUNCTIONS = 7, 25


@dataclass(frozen=True)
class Scanned:
    """What a model holds.

    Attributes:
        kinds: messages by the name of their type in onnx.proto; the model itself is not counted.
        totals: by the names of ``limits.MOST``.
        unfolded: with all functions unfolded.
    """

    kinds: Counter[str]
    totals: dict[str, int]
    unfolded: Unfolded


@contextmanager
def mapped(path: Path) -> Iterator[Buffer]:
    """The bytes of a file, mapped: pages that were read are the kernel's to drop.

    Raises:
        NotOnnxError: missing, empty or too large.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size > MAX_FILE_BYTES:
                raise NotOnnxError(
                    f"the file has {size} bytes; an ONNX file holds at most {MAX_FILE_BYTES}",
                    hint="Store the weights as external data.",
                )
            if not size:
                raise NotOnnxError("the model file is empty", hint="Upload the .onnx file again.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except OSError as error:
        raise NotOnnxError(f"the model cannot be read: {error.strerror}") from None


def scan_model(data: Buffer) -> Scanned:
    """Look at the bytes of a whole ONNX file.

    Args:
        data: the file.

    Raises:
        NotOnnxError: no ONNX file, or one that is cut short or damaged.
        ModelError: a tensor whose bytes do not match its shape.
        TooComplexError: a limit is broken; names it.
        UnsupportedModelError: functions that call themselves.
    """
    functions = _functions(data)
    walk = Walk(functions)
    walk.message(Place(data, 0, 0, len(data)), model_kind(), 0, 0)
    main, parts = walk.part, walk.parts
    return Scanned(walk.counts.kinds, walk.counts.totals, unfold(main, parts, walk.counts.kinds["NodeProto"]))


def _functions(data: Buffer) -> frozenset[FunctionKey]:
    """Keys of the model's functions, which stand behind the graph that calls them.

    Raises:
        NotOnnxError: the outermost fields are not those of a whole ONNX file.
        TooComplexError: there are too many of them.
    """
    found: set[FunctionKey] = set()
    functions = 0
    twice: tuple[FunctionKey, int] | None = None
    has_graph = False
    try:
        for count, (number, start, end) in enumerate(model_fields(data), 1):
            if count > MOST["messages"]:
                raise too_complex("messages", count, MOST["messages"], start)
            has_graph = has_graph or number == _GRAPH
            if number == _FUNCTIONS:
                functions += 1
                if functions > MAX_FUNCTIONS:
                    raise too_complex("functions", functions, MAX_FUNCTIONS, start)
                key = function_key(Place(data, 0, start, end))
                if key in found:
                    twice = twice or (key, start)
                found.add(key)
    except BadTagError:
        raise not_onnx() from None
    except IndexError:
        raise damaged("a field reaches beyond its message", "length", len(data)) from None
    except CutShortError as error:
        if error.name is None:
            raise not_onnx() from None
        raise NotOnnxError(
            f"the file is cut short: {error.missing} bytes are missing at its end, in field {error.name!r}",
            hint="Upload the file again; compare its size and sha256 with the original.",
            rule="length",
            field=error.name,
            offset=len(data),
        ) from None
    if not has_graph:
        raise not_onnx()
    if twice is not None:
        (_, name, _), start = twice
        why = f"function {name.decode(errors='replace')!r} is defined twice"
        raise damaged(why, "repetition", start, "functions")
    return frozenset(found)
