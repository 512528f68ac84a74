"""Asks onnxruntime whether it can execute a model, and finds the sentence that matters in its refusal."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as state

from service.contracts.errors import ResourceLimitError
from worker.quantizer.graph.mapped import building, known_in
from worker.quantizer.runtime.faults import RUNTIME_ERRORS
from worker.quantizer.runtime.session import keep_weights_once, owner_of, session_options

_REFUSALS = (*RUNTIME_ERRORS, state.NoModel, state.NoSuchFile, ValueError)
_OUT_OF_MEMORY = ("bad_alloc", "bad allocation", "failed to allocate memory", "out of memory")
_MAX_REASON_CHARACTERS = 600
# Products of constants are computed whatever they cost; preparation folds within a budget.
_UNBOUNDED = ["ConstantFolding"]

# What onnxruntime puts around the sentence that matters.
_NOISE = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"^\[ONNXRuntimeError\] : \d+ : \w+ : ",
        r"Load model from .*? failed:\s*",
        r"\S*onnxruntime\S*\.(?:cc|h|cpp):\d+ [^\n]*?\) (?=[A-Z\"'])",
        r"\b\w+\.(?:cc|h|cpp):\d+ \w+ ",
        r"^(?:Fatal error|This is an invalid model\.|Exception during initialization):? ?",
        r"^Error: ",
        r"^In Node, .*? , Error ",
        r"ONNX Runtime only \*guarantees\* .*?(?=Opset )",
        r"The operator schemas and or other functionality may change .*? backward compatibility\. ",
    )
)
_NODE = tuple(
    re.compile(pattern)
    for pattern in (
        r'In Node, \("(?P<node>[^"]*)", (?P<op>\w+), "(?P<domain>[^"]*)"',
        r"operator \((?P<op>\w+)\) in node \((?P<node>[^)]*)\)",
        r"Node ?\((?P<node>[^)]*)\) Op \((?P<op>\w+)\)",
        r"implementation for (?:(?P<domain>[\w.]+):)?(?P<op>\w+)\(\d+\) node with name '(?P<node>[^']*)'",
        r"(?P<domain>[\w.]*):(?P<op>\w+)\(-?\d+\) is not a registered function/op",
        r"Node input '(?P<input>[^']*)' is not",
        r"node with name '(?P<node>[^']*)'",
        r"[Nn]ode:? ?\(?'(?P<node>[^']*)'",
    )
)


class RuntimeRefusalError(Exception):
    """The runtime does not accept the model.

    Attributes:
        runtime: name and version.
        reason: why, without error numbers, C++ source locations and paths of this machine.
    """

    def __init__(self, raw: str, path: Path) -> None:
        super().__init__(raw)
        self.runtime = f"onnxruntime {ort.__version__}"
        self.reason = _clean(raw, path)
        match = next(filter(None, (pattern.search(raw) for pattern in _NODE)), None)
        self._named: dict[str, str] = {k: v for k, v in match.groupdict().items() if v} if match else {}

    @property
    def names_twice(self) -> bool:
        """True if two nodes share a name, which the runtime does not take."""
        return "same node name" in self.reason

    def is_about(self, node: onnx.NodeProto) -> bool:
        """True if the runtime's message speaks of ``node``."""
        named = self._named
        return (
            bool(named)
            and named.get("node", node.name) == node.name
            and named.get("op", node.op_type) == node.op_type
            and named.get("domain", node.domain) == node.domain
            and ("input" not in named or named["input"] in node.input)
        )


def check_runtime(path: Path, *, threads: int, optimized: bool, heavy: bool = False) -> ort.InferenceSession:
    """Create a session on the CPU, as every later step does; it is given back.

    Args:
        path: the .onnx file, external data beside it.
        threads: threads that the runtime may use.
        optimized: let it rewrite the graph as well, which takes most of the time; but for the folding of constants, on
            which it knows no bound.
        heavy: its weights are too large to be copied.

    Raises:
        RuntimeRefusalError: the runtime refuses the model.
        ResourceLimitError: creating the session takes more memory than there is.
    """
    options = session_options(threads, optimized=optimized)
    if heavy:
        keep_weights_once(options)
    try:
        with building(known_in(path.parent)) as owners:
            session = ort.InferenceSession(
                str(path),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=_UNBOUNDED,
            )
            owners.append(owner_of(session))
            return session
    except MemoryError:
        raise _out_of_memory() from None
    except _REFUSALS as error:
        if any(word in str(error).lower() for word in _OUT_OF_MEMORY):
            raise _out_of_memory() from None
        raise RuntimeRefusalError(str(error), path) from None


def _clean(raw: str, path: Path) -> str:
    reason = raw
    for noise in _NOISE:
        reason = noise.sub("", reason)
    reason = reason.replace(str(path), path.name).replace(f"{path.parent}/", "")
    reason = " ".join(reason.split())
    return reason if len(reason) <= _MAX_REASON_CHARACTERS else reason[:_MAX_REASON_CHARACTERS] + " ..."


def _out_of_memory() -> ResourceLimitError:
    return ResourceLimitError(
        "onnxruntime needs more memory to load the model than is allowed",
        hint="Use a smaller model, or raise the memory limit of jobs.",
        resource="memory",
    )
