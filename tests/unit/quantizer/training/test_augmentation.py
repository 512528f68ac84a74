"""Augmentations against loops over samples and pixels, which take the same draws."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch

from service.contracts.algorithms.training import Augmentation, Crop, Cutout, Flip, Noise, Shift
from service.contracts.errors import InvalidConfigError
from service.contracts.model import TensorInfo
from worker.quantizer.training.augmentation import Augmenter

COUNT = 40


def tensor(*shape: int | str | None, dtype: str = "float32", name: str = "x") -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def augmented(spec: Augmentation, values: np.ndarray, *, seed: int = 5, epoch: int = 1, step: int = 2) -> np.ndarray:
    info = TensorInfo(name="x", dtype=str(values.dtype), shape=("N", *values.shape[1:]))
    given = torch.from_numpy(values.copy())
    made = Augmenter([spec], [info], seed).augment({"x": given}, epoch=epoch, step=step)["x"]
    np.testing.assert_array_equal(given.numpy(), values)  # what was given stays as it is
    assert made.dtype == given.dtype
    return made.numpy()


def pictures(dtype: type = np.float32) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((COUNT, 2, 9, 12)) * 50
    return values.astype(dtype)


def crop_of(picture: np.ndarray, down: int, right: int) -> np.ndarray:
    made = np.empty_like(picture)
    _, height, width = picture.shape
    for y in range(height):
        for x in range(width):
            made[:, y, x] = picture[:, min(max(y - down, 0), height - 1), min(max(x - right, 0), width - 1)]
    return made


def test_flip_mirrors_some() -> None:
    values = pictures()
    made = augmented(Flip(probability=0.5), values)
    mirrored = [np.array_equal(one, given[..., ::-1]) for one, given in zip(made, values, strict=True)]
    kept = [np.array_equal(one, given) for one, given in zip(made, values, strict=True)]
    assert all(a != b for a, b in zip(mirrored, kept, strict=True))
    assert 8 < sum(mirrored) < 32
    np.testing.assert_array_equal(augmented(Flip(probability=1.0), values), values[..., ::-1])


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_crop_moves_and_repeats_the_border(dtype: type) -> None:
    values = pictures(dtype)
    sides = range(-3, 4)
    moves = {move: np.stack([crop_of(one, *move) for one in values]) for move in itertools.product(sides, sides)}
    found = []
    for k, one in enumerate(augmented(Crop(pixels=3), values)):
        (move,) = [move for move, made in moves.items() if np.array_equal(made[k], one)]
        found.append(move)
    assert len(set(found)) > 15
    assert {down for down, _ in found} == {right for _, right in found} == set(sides)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_cutout_sets_a_square_to_the_mean(dtype: type) -> None:
    values = pictures(dtype)
    means = values.mean(axis=(2, 3), dtype=np.float64)
    means = (means if dtype is np.float32 else means.round()).astype(dtype)
    places = set()
    for one, given, mean in zip(augmented(Cutout(pixels=3), values), values, means, strict=True):
        candidates = []
        for top in range(-1, 8):
            for left in range(-1, 11):
                wanted = given.copy()
                for y in range(max(top, 0), min(top + 3, 9)):
                    for x in range(max(left, 0), min(left + 3, 12)):
                        wanted[:, y, x] = mean
                if np.array_equal(wanted, one):
                    candidates.append((top, left))
        assert candidates
        places.add(candidates[0])
    assert len(places) > 20
    some = augmented(Cutout(pixels=3, probability=0.5), values)
    assert 8 < sum(np.array_equal(one, given) for one, given in zip(some, values, strict=True)) < 32


@pytest.mark.parametrize(("shape", "axis"), [((30,), -1), ((2, 30), -1), ((30, 2), 1), ((2, 30, 3), 2)])
def test_shift_moves_along_its_axis(shape: tuple[int, ...], axis: int) -> None:
    values = np.random.default_rng(1).standard_normal((COUNT, *shape)).astype(np.float32)
    found = set()
    for one, given in zip(augmented(Shift(steps=4, axis=axis), values), values, strict=True):
        moved, along = np.moveaxis(one, axis if axis < 0 else axis - 1, 0), None
        source = np.moveaxis(given, axis if axis < 0 else axis - 1, 0)
        for by in range(-4, 5):
            wanted = np.zeros_like(source)
            for k in range(30):
                if 0 <= k - by < 30:
                    wanted[k] = source[k - by]
            if np.array_equal(wanted, moved):
                along = by
        assert along is not None
        found.add(along)
    assert len(found) >= 7
    assert {-4, 4} <= found


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_noise_has_the_level_of_each_sample(dtype: type) -> None:
    random = np.random.default_rng(2)
    sizes = np.array([1.0, 10.0, 0.1, 0.0])[:, None]
    values = (3.0 + random.standard_normal((4, 20_000)) * sizes).astype(dtype)
    noise = augmented(Noise(level=0.1), values).astype(np.float64) - values
    deviations = values.astype(np.float64).std(axis=1)
    least = 2e-3 if dtype is np.float16 else 0.0  # half precision rounds
    np.testing.assert_allclose(noise.std(axis=1), 0.1 * deviations, rtol=0.03, atol=least)
    np.testing.assert_allclose(noise.mean(axis=1), 0.0, atol=0.005 * deviations.max())
    if dtype is not np.float16:
        assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.03
        assert not noise[3].any()


_ALL = (Flip(), Crop(pixels=2), Cutout(pixels=3), Noise(level=0.1), Shift(input="sound", steps=3))


def test_draws_hang_on_seed_epoch_and_step_and_are_made_in_order() -> None:
    inputs = [tensor("N", 2, 9, 12), tensor("N", 30, name="sound"), tensor("N", 3, name="other")]
    feeds = {
        "x": torch.from_numpy(pictures()),
        "sound": torch.randn(COUNT, 30, generator=torch.Generator().manual_seed(0)),
        "other": torch.zeros(COUNT, 3),
    }

    def made(seed: int, epoch: int, step: int) -> dict[str, torch.Tensor]:
        return Augmenter(_ALL, inputs, seed).augment(feeds, epoch=epoch, step=step)

    first, again = made(1, 2, 3), made(1, 2, 3)
    assert all(torch.equal(first[name], again[name]) for name in feeds)
    assert first["other"] is feeds["other"]
    for other in (made(2, 2, 3), made(1, 3, 3), made(1, 2, 4), made(1, 3, 2)):
        assert all(not torch.equal(first[name], other[name]) for name in ("x", "sound"))

    # they are applied in their order
    info, feed = tensor("N", 2, 9, 12), torch.from_numpy(pictures())
    never, flip, shift = Flip(probability=1e-12), Flip(probability=1.0), Shift(steps=5)  # never keeps a place

    def made(*specs: Augmentation, given: torch.Tensor = feed) -> torch.Tensor:
        return Augmenter(specs, [info], 0).augment({"x": given}, epoch=0, step=0)["x"]

    assert torch.equal(made(never), feed)
    assert torch.equal(made(flip, shift), made(never, shift, given=made(flip)))
    assert torch.equal(made(shift, flip), made(never, flip, given=made(shift)))
    assert not torch.equal(made(flip, shift), made(shift, flip))


@pytest.mark.parametrize("spec", [Flip(), Crop(pixels=2), Cutout(pixels=3), Shift(steps=3)])
def test_samples_stay_on_their_device(spec: Augmentation) -> None:
    """Tensors of device meta can be mixed with no others: as strict as a GPU, on every machine."""
    feed = torch.empty(COUNT, 2, 9, 12, device="meta")
    made = Augmenter([spec], [tensor("N", 2, 9, 12)], 0).augment({"x": feed}, epoch=0, step=0)["x"]
    assert (made.device.type, made.shape) == ("meta", feed.shape)


@pytest.mark.parametrize(
    ("spec", "info", "pointer", "told"),
    [
        (Flip(input="y"), tensor("N", 3, 8, 8), "input", "no input 'y'"),
        (Flip(), tensor("N", 10), "input", "[n, channels, height, width]"),
        (Flip(), tensor("N", 32, 32, 3), "input", "channels seem to come last"),
        (Crop(pixels=8), tensor("N", 3, 8, 32), "pixels", "leave nothing of a side of 8"),
        (Cutout(), tensor("N", 3, 32, 32, dtype="bool"), "input", "numbers"),
        (Shift(axis=-2), tensor("N", 32), "axis", "that of samples"),
        (Shift(axis=2), tensor("N", 32), "axis", "no axis 2"),
        (Shift(steps=32), tensor("N", 32), "steps", "leave nothing"),
        (Noise(), tensor("N", 32, dtype="int64"), "input", "floats"),
        (Noise(), tensor("N", 1), "input", "one element"),
    ],
)
def test_what_does_not_fit_is_refused(spec: Augmentation, info: TensorInfo, pointer: str, told: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(told)) as caught:
        Augmenter([Flip(input="good"), spec], [info, tensor("N", 3, 8, 8, name="good")], 0, pointer="/algorithms/1")
    assert [problem.pointer for problem in caught.value.errors] == [f"/algorithms/1/augmentations/1/{pointer}"]


def test_open_axes_are_judged_by_the_samples() -> None:
    augmenter = Augmenter([Crop(pixels=4)], [tensor("N", 3, None, "width")], 0)
    large, small = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 4, 8)
    assert augmenter.augment({"x": large}, epoch=0, step=0)["x"].shape == large.shape
    with pytest.raises(InvalidConfigError, match="side of 4"):
        augmenter.augment({"x": small}, epoch=0, step=0)
