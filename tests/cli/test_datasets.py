"""Folders and archives of pictures on the command line: packed, quantized with, here and on a service."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.client import Client
from tests.cli.conftest import KEY
from tests.support.media import encoded, noise, wav
from tests.support.provenance import without_provenance

SPEC = json.dumps(
    {
        "pictures": {"resize": {"shorter_side": 9, "interpolation": "bicubic"}, "crop": [8, 8]},
        "inputs": {"*": {"array": "images", "layout": "NHWC", "scale": 1 / 255, "mean": [0.5], "std": [0.25]}},
    }
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


def test_a_folder_an_archive_and_the_same_arrays_give_the_same_bytes(quantmill, service, tiny, tmp_path, pictures):
    as_npz(pictures, tmp_path / "data.npz")
    for_arrays = json.dumps({"inputs": json.loads(SPEC)["inputs"]})
    assert quantmill("dataset", "pack", pictures, "-o", "data.tar").returncode == 0
    runs = {
        "arrays": ("data.npz", for_arrays, ()),
        "folder": (pictures, SPEC, ()),
        "archive": ("data.tar", SPEC, ()),
        "server": (pictures, SPEC, ("--server", service.url, "--key", KEY)),
    }
    for name, (data, spec, more) in runs.items():
        done = quantmill(
            "quantize", tiny.model, "--calibration", data, "--evaluation", data, "--preprocessing", spec,
            "--output", f"{name}.onnx", "--report", f"{name}.json", *more,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        made = [without_provenance((tmp_path / f"{one}.onnx").read_bytes()) for one in (name, "arrays")]
        assert made[0] == made[1]
        reports = [json.loads((tmp_path / f"{which}.json").read_text()) for which in (name, "arrays")]
        assert reports[0]["quantized"]["metrics"] == reports[1]["quantized"]["metrics"]
        assert reports[0]["quantized"]["metrics"].keys() >= {"top1"}
    with Client(service.url, KEY) as client:
        jobs = list(client.jobs(limit=1))
        sheet = client.thumbnails(jobs[0].calibration_dataset_id)
    assert sheet.startswith(b"\x89PNG")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith((".quantmill", "quantmill-"))]


def test_evaluate_takes_a_folder(quantmill, tiny, tmp_path, pictures):
    as_npz(pictures, tmp_path / "data.npz")
    results = []
    for data, spec in ((pictures, SPEC), ("data.npz", json.dumps({"inputs": json.loads(SPEC)["inputs"]}))):
        done = quantmill("evaluate", tiny.model, "--evaluation", data, "--preprocessing", spec)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout)["model"]["metrics"])
    assert results[0] == results[1]


def test_packing_twice_gives_the_same_bytes(quantmill, tmp_path, pictures):
    for name in ("a.tar", "b.tar"):
        done = quantmill("dataset", "pack", pictures, "--output", name)
        assert done.returncode == 0, done.stderr
        assert re.search(r"20 pictures, 5 classes", done.stdout)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


@pytest.mark.parametrize("command", ["pack", "quantize"])
def test_what_cannot_be_used_is_refused_by_name(quantmill, tiny, tmp_path, pictures, command):
    (pictures / "3" / "notes.txt").write_text("no picture")
    if command == "pack":
        done = quantmill("dataset", "pack", pictures, "-o", "x.tar")
    else:
        done = quantmill("quantize", tiny.model, "--calibration", pictures, "--output", "x.onnx")
    assert done.returncode == 1
    assert "error[dataset-format]" in done.stderr
    assert "3/notes.txt" in done.stderr
    assert not list(tmp_path.glob("x.*"))


@pytest.mark.parametrize("output", ["x.zip", "pictures/x.tar"])
def test_packing_needs_a_tar_outside_of_the_folder(quantmill, pictures, output):
    assert quantmill("dataset", "pack", pictures, "-o", output).returncode == 2


def test_a_named_preprocessing_and_one_that_is_not_there(quantmill, tiny, tmp_path, pictures):
    options = ("quantize", tiny.model, "--calibration", pictures, "--output", "q.onnx", "--preprocessing")
    done = quantmill(*options, "timm:bicubic,0.9,inception,inception,8")
    assert done.returncode == 0, done.stderr
    done = quantmill(*options, "imagenet_torchvison")
    assert done.returncode == 1
    assert "did you mean 'imagenet_torchvision'?" in done.stderr
    assert quantmill(*options, "missing.json").returncode == 1


def test_a_folder_of_sounds_is_packed(quantmill, tmp_path):
    folder = tmp_path / "sounds"
    folder.mkdir()
    for k in range(3):
        (folder / f"{k}.wav").write_bytes(wav(np.arange(100) * k))
    (folder / "labels.csv").write_text("0.wav,yes\n1.wav,no\n2.wav,yes\n")
    done = quantmill("dataset", "pack", folder, "-o", "sounds.tar")
    assert done.returncode == 0, done.stderr
    assert "3 sounds, 2 classes" in done.stdout
