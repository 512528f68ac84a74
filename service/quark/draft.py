"""State of a translation: the config so far, and the result for each of Quark's keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from service.contracts.algorithms import in_order
from service.contracts.errors import FieldProblem

UNKNOWN, BAD_VALUE, REFUSED = "quark-unknown-key", "quark-value", "quark-not-translated"


@dataclass(frozen=True)
class Given:
    """A key of the document: its canonical name, its value and where it stands."""

    name: str
    value: Any
    pointer: str


@dataclass(frozen=True)
class Note:
    """Something that holds here otherwise than in Quark; ``pointer`` is the key that it concerns."""

    pointer: str
    message: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.message}"


@dataclass
class QuarkStep:
    """An algorithm of ours in the making."""

    settings: dict[str, Any]  # its entry of ``algorithms``, without the method
    pointer: str  # the key that asks for it
    # key of ``settings`` -> pointer of the key that it comes from
    origins: dict[str, str] = field(default_factory=dict)
    of_preset: bool = False  # True if a preset brought it


class QuarkDraft:
    """Collects our config and, for every given key, that it was honoured, noted or refused.

    Attributes:
        config: our config, as JSON.
        given: keys of the document by canonical name, those of a wrong type left out.
        steps: algorithms by method, in no order yet.
        origins: path within ``config`` -> pointer of the key that it comes from.
        root: pointer of the document.
        extended: True for what Quark writes in its extended Q/DQ format, whose quantizer alone aligns scales.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.extended = False
        self.config: dict[str, Any] = {}
        self.given: dict[str, Given] = {}
        self.steps: dict[str, QuarkStep] = {}
        self.origins: dict[str, str] = {}
        self.honoured: list[str] = []
        self.notes: list[Note] = []
        self.problems: list[FieldProblem] = []

    def value(self, name: str, default: Any = None) -> Any:
        """What was given under ``name``, or the default."""
        return self.given[name].value if name in self.given else default

    def pointer(self, *names: str) -> str:
        """Where the first of ``names`` that is given stands; the document where none is."""
        return next((self.given[name].pointer for name in names if name in self.given), self.root)

    def get(self, path: str) -> Any:
        """The value at ``path`` (a/b/c) of our config; None if it is not set."""
        here: Any = self.config
        for part in path.split("/"):
            here = here.get(part) if isinstance(here, dict) else None
        return here

    def set(self, path: str, value: Any, pointer: str) -> None:
        """Set ``path`` of our config because of the key at ``pointer``."""
        *parents, last = path.split("/")
        here = self.config
        for part in parents:
            here = here.setdefault(part, {})
        here[last] = value
        self.origins[path] = pointer

    def put(self, path: str, value: Any, given: Given) -> None:
        """Set ``path`` of our config, which is all that the key asks for."""
        self.set(path, value, given.pointer)
        self.honour(given.pointer)

    def write_algorithms(self) -> None:
        """Write the steps into our config, in the order in which they have to run."""
        self.config["algorithms"] = []
        for place, method in enumerate(in_order(list(self.steps))):
            step = self.steps[method]
            self.config["algorithms"].append({"method": method, **step.settings})
            self.origins[f"algorithms/{place}"] = step.pointer
            self.origins |= {f"algorithms/{place}/{key}": pointer for key, pointer in step.origins.items()}

    def honour(self, pointer: str) -> None:
        """The key at ``pointer`` is done as it says."""
        if pointer not in self.honoured:
            self.honoured.append(pointer)

    def note(self, pointer: str, message: str) -> None:
        """The key at ``pointer`` is accepted, with something to know."""
        note = Note(pointer, message)
        if note not in self.notes:
            self.notes.append(note)

    def idle(self, given: Given, default: Any, why: str) -> None:
        """The key does nothing: it says no more than the default, or a note says ``why``."""
        if given.value == default:
            self.honour(given.pointer)
        else:
            self.note(given.pointer, f"{given.name} {why}")

    def problem(self, pointer: str, message: str, code: str = REFUSED) -> None:
        """The key at ``pointer`` cannot be accepted."""
        self.problems.append(FieldProblem(pointer=pointer, code=code, message=message))

    @property
    def method(self) -> str:
        """Calibration method of the activations."""
        return str(self.get("activation/calibration/method"))

    @property
    def target(self) -> str:
        """The target; only the NPU targets are ever set."""
        return str(self.config.get("target", "onnxruntime_cpu"))
