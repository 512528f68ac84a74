"""The lock files install anywhere, and nothing but the files that they name; the version stands in one place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from service.contracts.base import VERSION

ROOT = Path(__file__).resolve().parents[2]
ALL, CPU, CUDA = "requirements.lock", "requirements-cpu.lock", "requirements-cuda.lock"
MLFLOW, FLOWER = "requirements-mlflow.lock", "requirements-flower.lock"
GUIDE = "requirements-guide.lock"
IMAGES = ("requirements-api.lock", "requirements-worker.lock")
ENGINE = {"onnx", "onnxruntime", "torch"}
PIN = re.compile(r"([a-z0-9._-]+)==([0-9][0-9a-z.]*(?:\+cpu)?)(?: ; [^;#]+?)? \\")
HASH = re.compile(r"    --hash=sha256:([0-9a-f]{64})(?: \\)?")


def locked(name: str) -> dict[str, tuple[str, set[str]]]:
    """Version and hashes by package; fails on a line that is neither, nor a comment."""
    found: dict[str, tuple[str, set[str]]] = {}
    hashes: set[str] = set()
    for line in (ROOT / name).read_text().splitlines():
        if line.lstrip().startswith("#"):
            continue
        if digest := HASH.fullmatch(line):
            hashes.add(digest[1])
            continue
        pin = PIN.fullmatch(line)
        assert pin, f"{name}: {line!r} is no exact version with hashes behind it"
        assert pin[1] not in found, f"{name}: {pin[1]} twice"
        hashes = set()
        found[pin[1]] = (pin[2], hashes)
    return found


@pytest.mark.parametrize("name", [ALL, CPU, CUDA, MLFLOW, FLOWER, GUIDE, *IMAGES])
def test_every_requirement_is_an_exact_version_with_hashes(name: str) -> None:
    pins = locked(name)
    assert pins
    assert [package for package, (_, hashes) in pins.items() if not hashes] == []
    assert "quantmill" not in pins


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["optional-dependencies"]
    apart = groups.pop("mlflow")  # in a lock of its own
    assert {re.split(r"[\[><=,;]", name)[0] for name in apart} <= set(locked(MLFLOW))
    extras = [name for group in groups.values() for name in group]
    wanted = {re.split(r"[\[><=,;]", name)[0].lower() for name in (*project["dependencies"], *extras)} - {"quantmill"}
    assert wanted <= set(locked(ALL))


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_made_of_a_part_of_the_lock_file(name: str) -> None:
    whole, part = locked(ALL), locked(name)
    assert part.items() <= whole.items()
    assert ("worker" in name) == bool(ENGINE & set(part))


def test_mlflow_and_its_packages_are_in_no_other_lock() -> None:
    apart = locked(MLFLOW)
    assert {"mlflow", "mlflow-skinny"} <= set(apart)
    assert not {"mlflow", "mlflow-skinny"} & {name for lock in (ALL, CUDA, *IMAGES) for name in locked(lock)}
    assert {"torch", "pytest"}.isdisjoint(apart)


def test_both_builds_of_torch_are_of_one_version() -> None:
    version, hashes = locked(ALL)["torch"]
    cpu_version, cpu_hashes = locked(CPU)["torch"]
    assert cpu_version == f"{version}+cpu"
    assert not hashes & cpu_hashes
    assert not set(locked(ALL)) & set(locked(CUDA)), "the CPU build needs none of CUDA's libraries"


def test_the_version_is_the_same_everywhere() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
