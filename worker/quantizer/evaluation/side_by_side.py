"""A model beside the float one: both take the same samples, batch by batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from service.contracts.model import TensorInfo
from worker.quantizer.data import OpenDataset, SampleBatch, choose_batch_size
from worker.quantizer.evaluation.certainty import Evidence
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.preparation.layout import TO_NHWC
from worker.quantizer.run.interface import Run
from worker.quantizer.runtime.session import Session, SessionSettings

Source = Literal["evaluation", "calibration", "random"]


@dataclass(frozen=True)
class Expected:
    """One batch and what the float model makes of it."""

    batch: SampleBatch  # the samples
    outputs: dict[str, Any]  # by name, with the samples that fill up; a sequence is a list of arrays

    @property
    def arrays(self) -> list[np.ndarray]:
        """Feeds and outputs that are arrays."""
        return [
            found for found in (*self.batch.feeds.values(), *self.outputs.values()) if isinstance(found, np.ndarray)
        ]


@dataclass(frozen=True)
class Twins:
    """One batch in both models."""

    batch: SampleBatch  # the samples
    expected: dict[str, Any]  # outputs of the float model by name, with the samples that fill up
    got: dict[str, Any]  # those of the other model, likewise

    def pairs(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """By name, both models' output without the samples that fill up.

        Sequences, and outputs whose length depends on the values and so differs, are left out.
        """
        for (name, one), other in zip(self.expected.items(), self.got.values(), strict=True):
            if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.shape == other.shape:
                yield name, self.batch.cut(one), self.batch.cut(other)


@dataclass(frozen=True)
class FloatReference:
    """The float model, and the samples on which others are held against it."""

    session: Session  # of the float model
    data: OpenDataset  # whose samples
    inputs: Sequence[TensorInfo]  # the model's
    source: Source = "evaluation"  # what the data is, for the report

    def outputs(
        self,
        run: Run,
        *,
        batch_size: int,
        samples: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        arrays: Collection[str | None] = (),
    ) -> Iterator[Expected]:
        """Run the float model.

        Args:
            run: asked before every batch whether to stop.
            batch_size: samples per batch, where the model lets one choose.
            samples: ascending numbers of those to run on; None: all.
            names: of the outputs wanted; None for all.
            arrays: of the dataset, to hand out beside the samples; None being the labels.

        Raises:
            DatasetError: the data is damaged or does not fit the model.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        names = list(self.session.output_names if names is None else names)
        for batch in self.batches(batch_size, samples=samples, arrays=arrays):
            run.check()
            found = self.session.run(batch.feeds, names, numbers=batch.numbers)
            yield Expected(batch, dict(zip(names, found, strict=True)))

    def batches(
        self, size: int, *, samples: Sequence[int] | None = None, arrays: Collection[str | None] = ()
    ) -> Iterator[SampleBatch]:
        """The samples of ``outputs`` as the model takes them.

        Raises:
            DatasetError: the data is damaged or does not fit the model.
        """
        size = choose_batch_size(self.inputs, self.data, size)
        return self.data.batches(self.inputs, size, samples=samples, arrays=arrays)


class KeptOutputs:
    """What the float model makes of data that is run on more than once; kept where it is not too large.

    Args:
        reference: the float model and the data.
        batch_size: samples per batch, where the model lets one choose.
        arrays: of the dataset, to hand out beside the samples; None being the labels.
        most_bytes: that outputs may take to be kept.
    """

    def __init__(
        self,
        reference: FloatReference,
        *,
        batch_size: int,
        arrays: Collection[str | None] = (),
        most_bytes: int = 256 * 2**20,
    ) -> None:
        self._reference, self._most_bytes = reference, most_bytes
        self._batch_size, self._arrays = batch_size, arrays
        self._kept: list[dict[str, Any]] | None = None

    def batches(self, run: Run) -> Iterator[Expected]:
        """All batches with their outputs; the float model runs the first time only, where they could be kept.

        Raises:
            DatasetError: the data is damaged or does not fit the model.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        if self._kept is not None:
            batches = self._reference.batches(self._batch_size, arrays=self._arrays)
            yield from (Expected(batch, outputs) for batch, outputs in zip(batches, self._kept, strict=True))
            return
        kept: list[dict[str, Any]] = []
        taken_bytes = 0
        for one in self._reference.outputs(run, batch_size=self._batch_size, arrays=self._arrays):
            taken_bytes += sum(array.nbytes for array in one.outputs.values() if isinstance(array, np.ndarray))
            if taken_bytes <= self._most_bytes:
                kept.append(one.outputs)
            yield one
        self._kept = kept if taken_bytes <= self._most_bytes else None


def side_by_side(
    session: Session, expected: Iterable[Expected], run: Run, *, outputs: Sequence[str] | None = None
) -> Iterator[Twins]:
    """Run a model on what the float model has run on.

    Args:
        session: the model.
        expected: what the float model made of each batch.
        run: asked before every batch whether to stop.
        outputs: what the float model's outputs are called in this one, in their order; None: the same.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    for one in expected:
        run.check()
        names = list(one.outputs if outputs is None else outputs)
        got = session.run(one.batch.feeds, names, numbers=one.batch.numbers)
        yield Twins(one.batch, one.outputs, dict(zip(names, got, strict=True)))


class MetricMeasurement:
    """All metrics over all batches, and what each sample adds to one of them.

    Args:
        metrics: to take.
        name: of the one.
        part: the batches are a part of the samples only.
    """

    def __init__(self, metrics: Metrics, name: str, *, part: bool = False) -> None:
        self._name = name
        self.whole = metrics.start(part=part)

    def update(self, twins: Twins) -> None:
        """Take in one batch.

        Raises:
            InvalidConfigError: an output or an array does not fit its metric.
        """
        self.whole.update(twins.batch, twins.got, twins.expected)

    @property
    def value(self) -> float | None:
        """The one over all batches; None if it is undefined."""
        return self.whole.values.get(self._name)

    @property
    def evidence(self) -> Evidence | None:
        """What it rests on; None if it is undefined, or nobody can tell."""
        return Evidence.of(self.whole.contributions.get(self._name))


# A session of a model whose inputs take NHWC, fed like the float model that takes NCHW.


class NhwcSession(Session):
    """Transposes the feeds of the inputs that take NHWC.

    The last feeds are kept: repeated runs on the same ones, as latency is measured, pay nothing for the change.

    Args:
        model: see ``Session``.
        inputs: names of the inputs that take NHWC.
        threads: intra-op threads.
        what: words for error messages.
        settings: see ``Session``.
    """

    def __init__(
        self,
        model: bytes | ir.Model,
        inputs: Collection[str],
        *,
        threads: int,
        what: str = "model",
        settings: SessionSettings | None = None,
    ) -> None:
        super().__init__(model, threads=threads, what=what, settings=settings or SessionSettings())
        self._inputs = frozenset(inputs)
        self._feeds: dict[str, np.ndarray] | None = None
        self._fed: dict[str, np.ndarray] = {}

    def run(
        self,
        feeds: dict[str, np.ndarray],
        outputs: Sequence[str] | None = None,
        *,
        numbers: Sequence[int] | None = None,
    ) -> list[np.ndarray]:
        """Run once on feeds in NCHW; see ``Session.run``."""
        if feeds is not self._feeds:
            self._feeds, self._fed = feeds, {name: self._turned(name, array) for name, array in feeds.items()}
        return super().run(self._fed, outputs, numbers=numbers)

    def _turned(self, name: str, array: np.ndarray) -> np.ndarray:
        fits = name in self._inputs and array.ndim == len(TO_NHWC)
        return np.ascontiguousarray(array.transpose(TO_NHWC)) if fits else array
