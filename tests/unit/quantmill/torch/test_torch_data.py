"""Loaders -> .npz: every form of batch, as a stream, and errors that name the batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from quantmill.torch import Exported, LoaderError, export
from quantmill.torch.data import Stored, store
from service.contracts.errors import EmptyDatasetError
from tests.unit.quantmill.torch.test_torch_export import module_of
from worker.quantizer.data import open_dataset


@pytest.fixture(scope="module")
def two() -> Exported:
    return export(module_of(lambda self, x, y: x + y), (torch.ones(2, 3), torch.ones(2, 3)))


@pytest.fixture(scope="module")
def one() -> Exported:
    return export(module_of(lambda self, x, factor=2.0: x * factor), (torch.ones(2, 3), 2.0))


X, Y, CLASSES = torch.arange(15.0).reshape(5, 3), -torch.arange(15.0).reshape(5, 3), torch.tensor([0, 1, 2, 1, 0])


def arrays(stored: Stored) -> dict[str, np.ndarray]:
    with np.load(stored.path) as archive:
        return dict(archive)


@pytest.mark.slow
@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(TensorDataset(X, Y, CLASSES), batch_size=2),
        [(X[:2], Y[:2], CLASSES[:2]), [X[2:], Y[2:], CLASSES[2:].tolist()]],
        [{"y": Y, "x": X, "labels": CLASSES}],
        [({"x": X, "y": Y}, CLASSES)],
        ((X[k : k + 1], Y[k : k + 1].numpy(), CLASSES[k : k + 1]) for k in range(5)),
    ],
    ids=["DataLoader", "lists", "dict", "dict and labels", "generator"],
)
def test_all_forms_of_batches(loader, two, tmp_path):
    stored = store(loader, two, tmp_path / "data.npz")
    found = arrays(stored)
    assert stored.samples == 5
    np.testing.assert_array_equal(found["x"], X)
    np.testing.assert_array_equal(found["y"], Y)
    np.testing.assert_array_equal(found["labels"], CLASSES)
    summary = open_dataset(stored.path, stored.preprocessing).summary
    assert (summary.samples, summary.has_classes) == (5, True)
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


@pytest.mark.slow
def test_without_labels_constants_need_no_place_in_a_batch(one, tmp_path):
    written = set()
    for loader in ([X], [(X,)], DataLoader(TensorDataset(X), batch_size=2), [{"x": X}], [X[:2], X[2:]]):
        stored = store(loader, one, tmp_path / "data.npz")
        assert list(arrays(stored)) == ["x"]
        written.add(stored.path.read_bytes())
    assert len(written) == 1, "however the samples are cut into batches"
    assert set(arrays(store([(X, CLASSES)], one, tmp_path / "data.npz"))) == {"x", "labels"}


@pytest.mark.slow
def test_what_has_no_axis_of_samples_is_stored_with_every_sample(tmp_path):
    table, bias = torch.randn(3, 4), torch.randn(5, 4)
    module = module_of(lambda self, x, table, labels: x @ table + labels)
    exported = export(module, (torch.ones(2, 3), table, torch.ones(2, 4)))
    stored = store(
        [(X[:3], table, bias[:3], CLASSES[:3]), (X[3:], 2 * table, bias[3:], CLASSES[3:])], exported, tmp_path / "d.npz"
    )
    found = arrays(stored)
    np.testing.assert_array_equal(found["table"], np.stack([table] * 3 + [2 * table] * 2))
    np.testing.assert_array_equal(found["labels"], bias)
    np.testing.assert_array_equal(found["classes"], CLASSES)
    data = open_dataset(stored.path, stored.preprocessing)
    assert data.summary.labels is not None
    assert data.summary.labels.array == "classes"
    assert set(data.summary.arrays) == {"x", "table", "labels"}


def test_only_one_batch_is_in_memory_and_no_more_are_read_than_needed(one, tmp_path):
    alive, most, given = [0], [0], []

    class Counted(np.ndarray):
        def __del__(self) -> None:
            alive[0] -= 1

    def loader() -> Iterator[np.ndarray]:
        for k in range(20):
            batch = np.ones((4, 3), np.float32).view(Counted)
            alive[0] += 1
            most[0] = max(most[0], alive[0])
            given.append(k)
            yield batch
            del batch

    assert store(loader(), one, tmp_path / "d.npz").samples == 80
    assert most[0] <= 2
    given.clear()
    assert store(loader(), one, tmp_path / "d.npz", limit=9).samples == 12
    assert len(given) == 3


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        ([X[0]], "batch 0 of the loader: input 'x' has shape [3], the module was exported for [samples, 3]"),
        ([X, X[:, :2]], "batch 1 of the loader: input 'x' has shape [5, 2]"),
        ([X.double()], "input 'x' is float64, the module takes float32"),
        ([(X, CLASSES[:2])], "labels of shape [2] for 5 samples"),
        ([(X, CLASSES), X], "batch 1 of the loader: it has no labels"),
        ([X, (X, CLASSES)], "batch 1 of the loader: it has labels"),
        ([(X, Y), (X, CLASSES)], "'labels' is int64"),
        ([(X, ["cat"] * 5)], "the labels, is of type list"),
        ([(X, Y, Y)], "the module takes x; given is x, value 1, value 2"),
        ([{"image": X}], "the module takes x; given is image"),
        (["words"], "is of type str"),
        ([()], "the module takes x; given is nothing"),
    ],
)
def test_what_does_not_fit_is_named_with_its_batch(loader: Any, says: str, one: Exported, tmp_path: Path) -> None:
    with pytest.raises(LoaderError) as caught:
        store(loader, one, tmp_path / "d.npz")
    assert says in caught.value.detail
    assert caught.value.where["batch"] == len(loader) - 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("loader", ["train.npz", Path("train.npz")])
def test_a_path_is_no_loader(loader: Any, one: Exported, tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match=f"Expected batches, got a {type(loader).__name__}."):
        store(loader, one, tmp_path / "d.npz")


def test_inputs_of_one_batch_have_to_agree(two, tmp_path):
    with pytest.raises(LoaderError, match="hold 2 and 5 samples"):
        store([(X, Y[:2])], two, tmp_path / "d.npz")


@pytest.mark.parametrize("loader", [[], iter(()), [torch.zeros(0, 3)]])
def test_an_empty_loader(loader, one, tmp_path):
    with pytest.raises(EmptyDatasetError, match="calibration loader gives no samples"):
        store(loader, one, tmp_path / "d.npz", role="calibration loader")
