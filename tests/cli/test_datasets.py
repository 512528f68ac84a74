"""Folders and archives of pictures on the command line: packed, quantized with, here and on a service."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.media import encoded, noise, wav
from tests.support.provenance import without_provenance

INPUTS = {"*": {"array": "images", "layout": "NHWC", "scale": 1 / 255, "mean": [0.5], "std": [0.25]}}
OF_ARRAYS = json.dumps({"inputs": INPUTS})
OF_PICTURES = json.dumps(
    {"pictures": {"resize": {"shorter_side": 9, "interpolation": "bicubic"}, "crop": [8, 8]}, "inputs": INPUTS}
)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """20 pictures of several sizes in folders of 5 classes."""
    folder = tmp_path / "pictures"
    for k in range(20):
        path = folder / str(k % 5) / f"{k}.{'jpg' if k % 2 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(noise(12 + k, 20, seed=k), "JPEG" if k % 2 else "PNG"))
    return folder


def as_npz(folder: Path, path: Path) -> None:
    """The same pictures, decoded, resized and cut by Pillow here, in the order of their names."""
    images, labels = [], []
    for file in sorted(folder.rglob("*.*"), key=lambda file: file.relative_to(folder).as_posix()):
        found = Image.open(file).convert("RGB")
        width, height = found.size
        size = (9, int(9 * height / width)) if width <= height else (int(9 * width / height), 9)
        found = found.resize(size, Image.BICUBIC)
        left, top = round((size[0] - 8) / 2), round((size[1] - 8) / 2)
        images.append(np.asarray(found.crop((left, top, left + 8, top + 8))))
        labels.append(int(file.parent.name))
    np.savez(path, images=np.stack(images), labels=labels)


def test_a_folder_an_archive_and_the_same_arrays_give_the_same_bytes(quantmill, tiny, tmp_path, pictures):
    as_npz(pictures, tmp_path / "data.npz")
    for name in ("data.tar", "again.tar"):
        done = quantmill("dataset", "pack", pictures, "-o", name)
        assert done.returncode == 0, done.stderr
        assert re.search(r"20 pictures, 5 classes", done.stdout)
    assert (tmp_path / "data.tar").read_bytes() == (tmp_path / "again.tar").read_bytes()
    runs = {"arrays": ("data.npz", OF_ARRAYS), "folder": (pictures, OF_PICTURES), "archive": ("data.tar", OF_PICTURES)}
    for name, (data, spec) in runs.items():
        done = quantmill(
            "quantize", tiny.model, "--calibration", data, "--evaluation", data, "--preprocessing", spec,
            "--output", f"{name}.onnx", "--report", f"{name}.json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        made = [without_provenance((tmp_path / f"{one}.onnx").read_bytes()) for one in (name, "arrays")]
        assert made[0] == made[1]
        metrics = [
            json.loads((tmp_path / f"{one}.json").read_text())["quantized"]["metrics"] for one in (name, "arrays")
        ]
        assert metrics[0] == metrics[1]
        assert "top1" in metrics[0]
    given = [("--evaluation", data, "--preprocessing", spec) for data, spec in runs.values()]
    told = [json.loads(quantmill("evaluate", tiny.model, *options).stdout)["model"]["metrics"] for options in given]
    assert told[0] == told[1] == told[2]


@pytest.mark.long
@pytest.mark.slow
def test_a_service_makes_the_same_of_a_folder(quantmill, ask, service, tiny, tmp_path, pictures):
    run = ("quantize", tiny.model, "--calibration", pictures, "--preprocessing", OF_PICTURES, "--output")
    assert quantmill(*run, "here.onnx").returncode == 0
    ask(*run, "there.onnx")
    assert (tmp_path / "here.onnx").read_bytes() == (tmp_path / "there.onnx").read_bytes()
    (job,) = service.client.jobs(limit=1)
    assert service.client.thumbnails(job.calibration_dataset_id).startswith(b"\x89PNG")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith((".quantmill", "quantmill-"))]


@pytest.mark.parametrize(
    "command",
    [
        "dataset pack {pictures} -o x.tar",
        "quantize {model} --calibration {pictures} --output x.onnx",
    ],
)
def test_what_cannot_be_used_is_refused_by_name(quantmill, tiny, tmp_path, pictures, command):
    (pictures / "3" / "notes.txt").write_text("no picture")
    done = quantmill(*(word.format(pictures=pictures, model=tiny.model) for word in command.split()))
    assert done.returncode == 1
    assert "error[dataset-format]" in done.stderr
    assert "3/notes.txt" in done.stderr
    assert not list(tmp_path.glob("x.*"))


@pytest.mark.parametrize("output", ["x.zip", "pictures/x.tar"])
def test_packing_needs_a_tar_outside_of_the_folder(quantmill, pictures, output):
    assert quantmill("dataset", "pack", pictures, "-o", output).returncode == 2


def test_a_named_preprocessing_and_one_that_is_not_there(quantmill, tiny, pictures):
    options = ("quantize", tiny.model, "--calibration", pictures, "--output", "q.onnx", "--preprocessing")
    done = quantmill(*options, "timm:bicubic,0.9,inception,inception,8")
    assert done.returncode == 0, done.stderr
    done = quantmill(*options, "imagenet_torchvison")
    assert done.returncode == 1
    assert "did you mean 'imagenet_torchvision'?" in done.stderr


def test_a_folder_of_sounds_is_packed(quantmill, tmp_path):
    folder = tmp_path / "sounds"
    folder.mkdir()
    for k in range(3):
        (folder / f"{k}.wav").write_bytes(wav(np.arange(100) * k))
    (folder / "labels.csv").write_text("0.wav,yes\n1.wav,no\n2.wav,yes\n")
    done = quantmill("dataset", "pack", folder, "-o", "sounds.tar")
    assert done.returncode == 0, done.stderr
    assert "3 sounds, 2 classes" in done.stdout
