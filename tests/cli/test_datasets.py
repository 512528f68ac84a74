"""Folders and archives of pictures on the command line: packed, quantized with, here and on a service."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.media import encoded, noise, wav
from tests.support.provenance import without_provenance

INPUTS = {"*": {"array": "images", "layout": "NHWC", "scale": 1 / 255, "mean": [0.5], "std": [0.25]}}
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


def test_a_folder_and_an_archive_give_the_same_bytes(quantmill, tiny, tmp_path, pictures):
    for name in ("data.tar", "again.tar"):
        done = quantmill("dataset", "pack", pictures, "-o", name, code=0)
        assert re.search(r"20 pictures, 5 classes", done.stdout)
    assert (tmp_path / "data.tar").read_bytes() == (tmp_path / "again.tar").read_bytes()
    runs = {"folder": pictures, "archive": "data.tar"}
    for name, data in runs.items():
        given = ("--calibration", data, "--evaluation", data, "--preprocessing", OF_PICTURES)
        quantmill("quantize", tiny.model, *given, "--output", f"{name}.onnx", "--report", f"{name}.json", code=0)
    made = [without_provenance((tmp_path / f"{name}.onnx").read_bytes()) for name in runs]
    assert made[0] == made[1]
    first, second = (json.loads((tmp_path / f"{name}.json").read_text())["quantized"]["metrics"] for name in runs)
    assert first == second and "top1" in first
    told = [
        json.loads(quantmill("evaluate", tiny.model, "--evaluation", data, "--preprocessing", OF_PICTURES).stdout)
        for data in runs.values()
    ]
    assert told[0]["model"]["metrics"] == told[1]["model"]["metrics"]


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
    "command", ["dataset pack {pictures} -o x.tar", "quantize {model} --calibration {pictures} --output x.onnx"]
)
def test_what_cannot_be_used_is_refused_by_name(quantmill, tiny, tmp_path, pictures, command):
    (pictures / "3" / "notes.txt").write_text("no picture")
    done = quantmill(*(word.format(pictures=pictures, model=tiny.model) for word in command.split()), code=1)
    assert "error[dataset-format]" in done.stderr
    assert "3/notes.txt" in done.stderr
    assert not list(tmp_path.glob("x.*"))


@pytest.mark.parametrize("output", ["x.zip", "pictures/x.tar"])
def test_packing_needs_a_tar_outside_of_the_folder(quantmill, pictures, output):
    assert quantmill("dataset", "pack", pictures, "-o", output).returncode == 2


def test_a_folder_of_sounds_is_packed(quantmill, tmp_path):
    folder = tmp_path / "sounds"
    folder.mkdir()
    for k in range(3):
        (folder / f"{k}.wav").write_bytes(wav(np.arange(100) * k))
    (folder / "labels.csv").write_text("0.wav,yes\n1.wav,no\n2.wav,yes\n")
    done = quantmill("dataset", "pack", folder, "-o", "sounds.tar", code=0)
    assert "3 sounds, 2 classes" in done.stdout
