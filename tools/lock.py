"""Resolves the lock files from pyproject.toml: ``python tools/lock.py [--upgrade]``.

Every requirement is pinned to a version and to the hashes of all of its files on PyPI. Of torch there are two builds
for Linux on x86-64: PyPI's, which needs CUDA's libraries, and the CPU build of PyTorch's own index. The CPU build has a
file of its own, for pip prefers files whose hashes an index tells; what only PyPI's build needs is kept apart, too.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = "3.11"
PROJECT = "pyproject.toml"
ALL, CPU, CUDA = "requirements.lock", "requirements-cpu.lock", "requirements-cuda.lock"
# Programs with an environment each: none of their packages is in the other locks. For tests the server of MLflow, with
# what reads its models back, Flower, which shows Celery's tasks, and Helm; Zensical, which builds
# the guide from docs/.
APART = {
    "requirements-mlflow.lock": ("mlflow", [PROJECT, "tools/mlflow.in", "--extra", "mlflow"]),
    "requirements-flower.lock": ("flower", ["tools/flower.in"]),
    "requirements-guide.lock": ("guide", ["tools/guide.in"]),
    "requirements-helm.lock": ("helm", ["tools/helm.in"]),
}
# Every extra but that of MLflow.
EXTRAS = ("build", "worker", "torch", "demo", "otel", "dev")
# What each image needs of the project, by the lock file that holds it.
IMAGES = {
    "requirements-api.lock": ["--extra", "build", "--extra", "otel"],
    "requirements-worker.lock": ["--extra", "build", "--extra", "worker", "--extra", "otel"],
}
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_PLATFORM = "manylinux_2_28_x86_64"
CPU_MARKER = "sys_platform == 'linux' and platform_machine == 'x86_64'"
OF_CUDA = re.compile(r"(nvidia|cuda)-.+|triton")
HEADER = "# Made by `make lock` from pyproject.toml and constraints.txt.{}\n"
ABOUT_CPU = f" The CPU build of torch: installed before {ALL}, where pip can find it."
ABOUT_CUDA = f" What PyPI's build of torch needs beside {ALL}."
ABOUT_APART = " In an environment of its own: `make {}`."


@dataclass(frozen=True)
class Pin:
    """One requirement of a lock file: its lines, with hashes and with who asks for it."""

    name: str
    lines: tuple[str, ...]

    @property
    def asked_by(self) -> set[str]:
        """Names of the packages that need it."""
        words = " ".join(line.strip().lstrip("# ") for line in self.lines if line.lstrip().startswith("#"))
        return set(words.replace("via", "", 1).split())


def parse(text: str) -> list[Pin]:
    """The pins of a lock file, in their order."""
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line and line[0] not in " #":
            blocks.append([line])
        elif blocks:
            blocks[-1].append(line)
    return [Pin(re.split(r"[=\[ ]", block[0])[0], tuple(block)) for block in blocks]


def written(about: str, pins: list[Pin]) -> str:
    return HEADER.format(about) + "".join(f"{line}\n" for pin in pins for line in pin.lines)


def resolve(known: str, selection: list[str], *, upgrade: bool) -> list[Pin]:
    """Everything that a selection needs, on every platform; versions in ``known`` are kept where they fit.

    Args:
        known: lock files, as text.
        selection: files of requirements, then options such as extras.
        upgrade: whether to take the newest versions instead.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lock"
        output.write_text(known)
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", *selection),
            *("--universal", "--python-version", PYTHON),
            *("--generate-hashes", "--constraint", "constraints.txt", "--default-index", "https://pypi.org/simple"),
            *("--no-emit-package", "quantmill", "--no-header", "--output-file", str(output)),
            *(["--upgrade"] if upgrade else []),
        ]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return parse(unmarked(output.read_text()))


def unmarked(text: str) -> str:
    """Without the marker that nearly all bear, and its clause on Python: ``tool.uv.environments`` says it already."""
    ((marker, _),) = Counter(re.findall(r"^\S+( ; .+) \\$", text, re.MULTILINE)).most_common(1)
    clause = marker.removeprefix(" ; ").partition(" and ")[0]
    return text.replace(f"{marker} \\\n", " \\\n").replace(f"{clause} and ", "")


def apart(pins: list[Pin]) -> tuple[list[Pin], list[Pin]]:
    """What every machine needs, and what CUDA's build of torch needs beside it."""
    cuda = [pin for pin in pins if OF_CUDA.fullmatch(pin.name)]
    names = {pin.name for pin in cuda}
    rest = [pin for pin in pins if pin.name not in names]
    stray = [pin.name for pin in rest if pin.asked_by and pin.asked_by <= names]
    if stray:
        raise SystemExit(f"error: only packages of CUDA need {stray}: name them in OF_CUDA of {Path(__file__).name}")
    return rest, cuda


def cpu_build(torch: Pin) -> Pin:
    """Of the same version, for Linux on x86-64."""
    requirement = torch.lines[0].removesuffix(" \\") + "+cpu"
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--retries", "1", "--no-deps"),
            *("--only-binary", ":all:", "--platform", CPU_PLATFORM, "--python-version", PYTHON),
            *("--extra-index-url", CPU_INDEX, "--dest", folder, requirement),
        ]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).iterdir()
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Pin("torch", (f"{requirement} ; {CPU_MARKER} \\", f"    --hash=sha256:{digest}"))


def lock_apart(name: str, known: str, *, upgrade: bool) -> str:
    """The lock of an environment of its own; what the project needs itself has the versions of ``known``."""
    target, selection = APART[name]
    there = (ROOT / name).read_text() if (ROOT / name).exists() else ""
    return written(ABOUT_APART.format(target), resolve(known + there, selection, upgrade=upgrade))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions, not those locked today")
    upgrade = parser.parse_args().upgrade
    known = "".join((ROOT / name).read_text() for name in (ALL, CUDA) if (ROOT / name).exists())
    extras = [word for name in EXTRAS for word in ("--extra", name)]
    everything, cuda = apart(resolve(known, [PROJECT, *extras], upgrade=upgrade))
    (torch,) = (pin for pin in everything if pin.name == "torch")
    made = {ALL: written("", everything), CUDA: written(ABOUT_CUDA, cuda), CPU: written(ABOUT_CPU, [cpu_build(torch)])}
    known = made[ALL] + made[CUDA]  # the images get no version that is not in them
    for name, options in IMAGES.items():
        made[name] = written("", apart(resolve(known, [PROJECT, *options], upgrade=False))[0])
    made |= {name: lock_apart(name, known, upgrade=upgrade) for name in APART}
    for name, text in made.items():
        (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
