"""Decoding, resize and crop are torchvision's on pictures, computed here by Pillow calls of the test's own."""

from __future__ import annotations

import io
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.errors import DatasetArraysError, DatasetFormatError, DatasetMismatchError
from service.contracts.model import TensorInfo
from service.contracts.preprocessing import ResizeSpec
from tests.support.each import each
from tests.support.media import KINDS, Kind, archive, encoded, noise
from worker.quantizer.data import open_dataset
from worker.quantizer.data.media import picture
from worker.quantizer.data.media.picture import resample

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)
FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS, "nearest": Image.NEAREST}


def images(path: Path, spec: PreprocessingSpec | dict[str, Any] | str) -> np.ndarray[Any, Any]:
    data = open_dataset(path, PreprocessingSpec.model_validate(spec))
    reader = data.selection.arrays["images"].open()
    values = reader.read(data.samples)
    reader.close()
    return values


def loaded(data: bytes, mode: str = "RGB") -> Image.Image:
    """torchvision.datasets.folder.pil_loader."""
    with Image.open(io.BytesIO(data)) as found:
        return found.convert(mode)


def torchvision_resize(found: Image.Image, size: int, resampling: int) -> Image.Image:
    """torchvision.transforms.functional.resize of a PIL image and one number, as its source has it."""
    w, h = found.size
    short, long = (w, h) if w <= h else (h, w)
    new_short, new_long = size, int(size * long / short)
    new_w, new_h = (new_short, new_long) if w <= h else (new_long, new_short)
    return found if (w, h) == (new_w, new_h) else found.resize((new_w, new_h), resampling)


def torchvision_center_crop(found: Image.Image, height: int, width: int) -> Image.Image:
    """torchvision.transforms.functional.center_crop, as its source has it, its padding with NumPy."""
    pixels = np.asarray(found)
    wide, high = max(width - found.width, 0), max(height - found.height, 0)
    around = [(high // 2, (high + 1) // 2), (wide // 2, (wide + 1) // 2), (0, 0)]
    pixels = np.pad(pixels, around[: pixels.ndim])
    top, left = (int(round((has - keeps) / 2.0)) for has, keeps in zip(pixels.shape, (height, width), strict=False))  # noqa: RUF046
    return Image.fromarray(pixels[top : top + height, left : left + width])


SIZES = [(37, 61), (61, 37), (48, 48), (33, 100), (256, 19), (31, 32)]


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("codec", ["JPEG", "PNG", "WEBP", "BMP"])
def test_shorter_side_and_crop_are_those_of_torchvision(tmp_path: Path, interpolation: str, codec: str) -> None:
    files = {f"{k}.{codec.lower()}": encoded(noise(h, w, seed=k), codec) for k, (h, w) in enumerate(SIZES)}
    files = {name.replace(".jpeg", ".jpg"): data for name, data in files.items()}
    path = archive(tmp_path / "x", files)
    spec = {"pictures": {"resize": {"shorter_side": 29, "interpolation": interpolation}, "crop": [24, 25]}}
    wanted = [
        np.asarray(torchvision_center_crop(torchvision_resize(loaded(data), 29, FILTERS[interpolation]), 24, 25))
        for data in files.values()
    ]
    np.testing.assert_array_equal(images(path, spec), np.stack(wanted))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_the_longer_side_is_rounded_as_in_torchvision(width: int, height: int, side: int) -> None:
    short, long = min(width, height), max(width, height)
    other = int(side * long / short)
    wanted = (side, other) if width <= height else (other, side)
    assert picture.resized_size(width, height, ResizeSpec(shorter_side=side)) == wanted


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3]))
def test_every_crop_is_that_of_torchvision(
    width: int, height: int, to_width: int, to_height: int, channels: int
) -> None:
    found = Image.fromarray(noise(height, width, seed=1, channels=channels))
    wanted = np.asarray(torchvision_center_crop(found, to_height, to_width))
    np.testing.assert_array_equal(np.asarray(picture.center_crop(found, to_height, to_width)), wanted)


@pytest.mark.parametrize(
    ("size", "cubic"), [((20, 30), False), ((96, 131), True), ((40, 70), True), ((1, 1), False), ((7, 200), True)]
)
def test_resizing_without_antialias_is_that_of_torch(size: tuple[int, int], cubic: bool) -> None:
    pixels = noise(40, 70)
    planes = torch.from_numpy(pixels.transpose(2, 0, 1)[np.newaxis].astype(np.float32))
    mode = "bicubic" if cubic else "bilinear"
    made = torch.nn.functional.interpolate(planes, size=size, mode=mode, align_corners=False)
    wanted = made.clamp(0, 255).round().numpy()[0].transpose(1, 2, 0)
    ours = resample(pixels, *size, cubic=cubic)
    assert ours.shape == (*size, 3)
    difference = np.abs(ours.astype(float) - wanted)
    # sums in another order round a value that lies between two levels to either of them
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01


def test_an_exact_size_is_taken_with_antialias_or_without(tmp_path: Path) -> None:
    data = encoded(noise(40, 70))
    path = archive(tmp_path / "x", {"a.JPG": data})  # the ending does not choose the format
    resize = {"size": [20, 30], "interpolation": "bicubic"}
    wanted = np.asarray(loaded(data).resize((30, 20), Image.BICUBIC))
    np.testing.assert_array_equal(images(path, {"pictures": {"resize": resize}})[0], wanted)
    sharp = images(path, {"pictures": {"resize": {"size": [10, 10], "antialias": False}}})
    np.testing.assert_array_equal(sharp[0], resample(np.asarray(loaded(data)), 10, 10, cubic=False))
    assert (sharp != images(path, {"pictures": {"resize": {"size": [10, 10]}}})).any()
    with pytest.raises(ValueError, match="there is none without antialias"):
        ResizeSpec(size=(8, 8), interpolation="lanczos", antialias=False)


def special_pictures() -> dict[str, bytes]:
    """Pictures that are not plain RGB."""
    rgb = Image.fromarray(noise(16, 16))
    deep = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    turned = Image.Exif()
    turned[0x0112] = 6  # turned by 90 degrees
    clear = np.dstack([noise(16, 16), np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))])
    return {
        "cmyk.jpg": encoded(rgb.convert("CMYK"), "JPEG"),
        "palette.png": encoded(rgb.quantize(16)),
        "palette_with_clear_colour.png": encoded(rgb.quantize(16), transparency=3),
        "deep.png": encoded(Image.fromarray(deep)),
        "grey.png": encoded(rgb.convert("L")),
        "grey_and_alpha.png": encoded(rgb.convert("LA")),
        "bits.png": encoded(rgb.convert("1")),
        "alpha.webp": encoded(Image.fromarray(clear), "WEBP", lossless=True),
        "turned.jpg": encoded(rgb, "JPEG", exif=turned),
        "progressive.jpg": encoded(rgb, "JPEG", progressive=True),
        "animation.webp": encoded(rgb, "WEBP", save_all=True, append_images=[rgb.rotate(90)], lossless=True),
    }


@pytest.mark.parametrize(("colour", "mode"), [("rgb", "RGB"), ("grey", "L")])
def test_special_pictures_are_converted_as_by_the_default_loader(tmp_path: Path, colour: str, mode: str) -> None:
    files = special_pictures()
    path = archive(tmp_path / "x", files)
    found = images(path, {"pictures": {"colour": colour}})
    np.testing.assert_array_equal(found, np.stack([np.asarray(loaded(data, mode)) for data in files.values()]))
    if colour == "grey":  # they feed one channel
        document = {"pictures": {"colour": "grey"}, "inputs": {"*": {"array": "images", "layout": "NHW", "scale": 0.5}}}
        assert fed(path, document, "n", 1, 16, 16)[0].feeds["x"].shape == (3, 1, 16, 16)


def test_pictures_of_several_sizes_need_one(tmp_path: Path) -> None:
    path = archive(tmp_path / "x", {"a.png": encoded(noise(8, 8)), "b.png": encoded(noise(8, 9))})
    for pictures in (None, {"resize": {"shorter_side": 8}}):
        with pytest.raises(DatasetFormatError, match=r"'b.png' gives 8 x 9 pixels, the first one 8 x 8") as caught:
            images(path, {"pictures": pictures})
        assert "resize or a crop" in str(caught.value.hint)


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_feeds_what_the_same_arrays_feed(tmp_path: Path, kind: Kind) -> None:
    files = {f"c{k % 3}/{k}.png": encoded(noise(30 + k, 40, seed=k)) for k in range(7)}
    spec = PreprocessingSpec.model_validate("timm:bicubic,0.9,inception,0.5,16")
    path = archive(tmp_path / "x", files, kind)
    np.savez(tmp_path / "x.npz", images=images(path, spec), labels=[k % 3 for k in range(7)])
    ours = fed(path, spec, "n", 3, 16, 16)
    assert len(ours) == 3
    theirs = fed(tmp_path / "x.npz", PreprocessingSpec(inputs=spec.inputs), "n", 3, 16, 16)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.feeds["x"], other.feeds["x"])
        np.testing.assert_array_equal(one.labels, other.labels)


def fed(path: Path, spec: Any, *shape: int | str) -> list[Any]:
    data = open_dataset(path, PreprocessingSpec.model_validate(spec))
    return list(data.batches([TensorInfo(name="x", dtype="float32", shape=shape)], 3))


def test_a_spec_that_resizes_does_not_fit_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(DatasetArraysError, match="not resized or cropped") as caught:
        open_dataset(tmp_path / "x.npz", PreprocessingSpec.model_validate({"pictures": {"crop": [4, 4]}}))
    assert [place.pointer for place in caught.value.errors] == ["/preprocessing/pictures"]


PIXELS = np.stack([noise(8, 9, seed=seed) for seed in range(3)])


@pytest.mark.parametrize("name", ["imagenet_tf", "imagenet_torchvision", "imagenet_caffe", "cifar10", "timm"])
@pytest.mark.parametrize(
    "arrays",
    [
        {"images": PIXELS},
        {"images": PIXELS.transpose(0, 3, 1, 2)},
        {"images": PIXELS.astype(np.float32)},
        {"x": PIXELS.astype(np.int32), "labels": np.zeros(3, np.int64)},
        {"pixels": PIXELS, "other": np.zeros((3, 5), np.float32)},
    ],
)
def test_a_name_means_the_same_for_every_array_of_pictures(tmp_path: Path, name: str, arrays: dict[str, Any]) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    spec = PreprocessingSpec.model_validate(name).inputs["*"]
    (batch,) = fed(tmp_path / "x.npz", name, "n", 3, 8, 9)
    fed_as = PIXELS[..., ::-1] if spec.channel_order == "bgr" else PIXELS
    wanted = (fed_as.astype(np.float64) * spec.scale - spec.mean) / spec.std
    np.testing.assert_array_equal(batch.feeds["x"], wanted.transpose(0, 3, 1, 2).astype(np.float32))


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"images": PIXELS / 255}, "contains float64 from 0"),
        ({"images": PIXELS.astype(np.float32) - 128}, "expects pictures from 0 to 255"),
        ({"one": PIXELS, "two": PIXELS}, "found two: 'one', 'two'"),
        ({"images": np.zeros((3, 8, 8, 4), np.uint8)}, "contains .*; found none"),
    ],
)
def test_arrays_that_a_name_does_not_fit_are_refused(tmp_path: Path, arrays: dict[str, Any], told: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DatasetArraysError, match=told) as caught:
        open_dataset(tmp_path / "x.npz", PreprocessingSpec.model_validate("imagenet_tf"))
    assert "preprocessing.inputs" in str(caught.value.hint)


def reference(data: bytes, side: int = 256, filter_: Any = Image.BILINEAR) -> np.ndarray[Any, Any]:
    """ToTensor behind Resize and CenterCrop(224)."""
    found = torchvision_center_crop(torchvision_resize(loaded(data), side, filter_), 224, 224)
    return np.asarray(found, np.float64).transpose(2, 0, 1) / 255


def reference_imagenet(data: bytes) -> np.ndarray[Any, Any]:
    """Normalize."""
    mean, std = (np.reshape(numbers, (3, 1, 1)) for numbers in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    return (reference(data) - mean) / std


CAFFE_MEAN = (103.939, 116.779, 123.68)  # of keras.applications.imagenet_utils, mode "caffe"


def reference_timm(data: bytes, filter_: Any = Image.BICUBIC) -> np.ndarray[Any, Any]:
    """timm: crop_pct 0.95, mean and std of 0.5, size 224."""
    return (reference(data, math.floor(224 / 0.95), filter_) - 0.5) / 0.5


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("imagenet_torchvision", reference_imagenet),
        ("imagenet_tf", lambda data: reference(data) * 2 - 1),
        ("imagenet_torchvision:BGR", lambda data: reference_imagenet(data)[::-1]),
        ("imagenet_caffe:BGR", lambda data: reference(data)[::-1] * 255 - np.reshape(CAFFE_MEAN, (3, 1, 1))),
        ("timm:bicubic,0.95,(0.5,0.5,0.5),(0.5,0.5,0.5)", reference_timm),
        ("timm:,0.95,inception,0.5/0.5/0.5,224,center", reference_timm),
        ("timm:bilinear,0.95,inception,inception", partial(reference_timm, filter_=Image.BILINEAR)),
        ("timm:lanczos,0.95,inception,inception", partial(reference_timm, filter_=Image.LANCZOS)),
        ("timm:nearest,0.95,inception,inception", partial(reference_timm, filter_=Image.NEAREST)),
    ],
)
def test_named_specs(tmp_path: Path, name: str, wanted: Any) -> None:
    data = encoded(noise(300, 401), "JPEG")
    (batch,) = fed(archive(tmp_path / "x", {"a.jpg": data}), name, "n", 3, 224, 224)
    np.testing.assert_allclose(batch.feeds["x"][0], wanted(data), rtol=1e-6, atol=1e-6)


def test_cifar10_is_normalized_and_nothing_else(tmp_path: Path) -> None:
    pixels = noise(32, 32)
    (batch,) = fed(archive(tmp_path / "x", {"a.png": encoded(pixels)}), "cifar10:NHWC", "n", 32, 32, 3)
    wanted = (pixels / 255 - [0.4914, 0.4822, 0.4465]) / [0.2470, 0.2435, 0.2616]
    np.testing.assert_allclose(batch.feeds["x"][0], wanted, rtol=1e-6)
    (batch,) = fed(tmp_path / "x", "cifar10:BGR:NHWC", "n", 32, 32, 3)
    np.testing.assert_allclose(batch.feeds["x"][0], wanted[..., ::-1], rtol=1e-6)


@each("layout", ["NHWC", "NCHW"])
@each("model_layout", ["NHWC", "NCHW"])
@each("dtype", ["uint8", "float32"])
def test_stored_channels_are_turned_over(tmp_path: Path, layout: str, model_layout: str, dtype: str) -> None:
    pictures = {"NHWC": PIXELS, "NCHW": PIXELS.transpose(0, 3, 1, 2)}
    np.savez(tmp_path / "x.npz", x=pictures[layout])
    shape = ("n", *pictures[model_layout].shape[1:])
    order = {"layout": layout, "model_layout": model_layout, "channel_order": "bgr"}
    tensor = TensorInfo(name="x", dtype=dtype, shape=shape)
    for mean in (0.0,), (1.0, 2.0, 3.0):
        spec = PreprocessingSpec.model_validate({"inputs": {"x": {**order, "mean": mean}}})
        if dtype == "uint8" and any(mean):
            continue
        (batch,) = open_dataset(tmp_path / "x.npz", spec).batches([tensor], 3)
        wanted = PIXELS[..., ::-1] - np.array(mean)
        got = batch.feeds["x"] if model_layout == "NHWC" else batch.feeds["x"].transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(got, wanted)


def test_an_order_takes_three_channels_and_a_layout(tmp_path: Path) -> None:
    for layout in (None, "NHW"):
        with pytest.raises(ValidationError, match="layout with channels"):
            InputSpec.model_validate({"layout": layout, "channel_order": "bgr"})
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 4, 4, 1), np.uint8))
    spec = PreprocessingSpec.model_validate({"inputs": {"x": {"layout": "NHWC", "channel_order": "bgr"}}})
    tensor = TensorInfo(name="x", dtype="uint8", shape=("n", 1, 4, 4))
    with pytest.raises(DatasetMismatchError, match="takes 3 channels"):
        list(open_dataset(tmp_path / "x.npz", spec).batches([tensor], 1))
    for wrong in ("cifar10:RGB", "cifar10:BGR:BGR", "imagenet:BGR"):
        with pytest.raises(ValidationError, match="unknown preprocessing"):
            PreprocessingSpec.model_validate(wrong)
