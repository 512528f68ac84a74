"""A session of a model whose inputs take NHWC, fed like the float model that takes NCHW."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from worker.quantizer.preparation.layout import TO_NHWC
from worker.quantizer.runtime.session import Session


class NhwcSession(Session):
    """Transposes the feeds of the inputs that take NHWC.

    The last feeds are kept: repeated runs on the same ones, as latency is measured, pay nothing for the change.

    Args:
        model: see ``Session``.
        inputs: names of the inputs that take NHWC.
        threads: intra-op threads.
        what: words for error messages.
        packed: see ``Session``.
        profile: likewise.
    """

    def __init__(
        self,
        model: bytes | ir.Model,
        inputs: Collection[str],
        *,
        threads: int,
        what: str = "model",
        packed: bool = False,
        profile: Path | None = None,
    ) -> None:
        super().__init__(model, threads=threads, what=what, packed=packed, profile=profile)
        self._inputs = frozenset(inputs)
        self._feeds: dict[str, np.ndarray] | None = None
        self._fed: dict[str, np.ndarray] = {}

    def run(
        self, feeds: dict[str, np.ndarray], outputs: Sequence[str] | None = None, *, start: int | None = None
    ) -> list[np.ndarray]:
        """Run once on feeds in NCHW; see ``Session.run``."""
        if feeds is not self._feeds:
            self._feeds, self._fed = feeds, {name: self._turned(name, array) for name, array in feeds.items()}
        return super().run(self._fed, outputs, start=start)

    def _turned(self, name: str, array: np.ndarray) -> np.ndarray:
        fits = name in self._inputs and array.ndim == len(TO_NHWC)
        return np.ascontiguousarray(array.transpose(TO_NHWC)) if fits else array
