"""Where onnxruntime runs float models: a GPU's provider that works, and else the CPU, which is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import onnx
import onnxruntime as ort
import pytest

from service.contracts.errors import DeviceNotThereError, ResourceLimitError
from service.contracts.runner import DatasetSource
from tests.support.provenance import without_provenance
from tests.unit.quantizer.toolbox import config, data, network, write_npz
from worker.quantizer.pipeline import Provisions, Result, quantize
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.runtime import providers
from worker.quantizer.runtime.providers import Accelerator, find_accelerator, gpu_memory, providers_of
from worker.quantizer.runtime.session import Session, SessionSettings

# Part of every build, and not the CPU's by name; it computes nothing itself, so that the CPU does.
STAND_IN = "AzureExecutionProvider"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with a GPU, as far as its files tell."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(providers, "_DRIVERS", (str(tmp_path),))


@pytest.fixture
def usable(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that onnxruntime can use."""
    monkeypatch.setattr(providers, "_PROVIDERS", {"cuda": (STAND_IN,)})
    monkeypatch.setattr(providers, "_options", lambda provider, number: {})


class Log(SilentRun):
    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []

    def log(self, message: str, level: str = "info") -> None:
        self.messages.append((level, message))


def quantized(folder: Path, device: str, run: SilentRun | None = None) -> Result:
    onnx.save(network(), folder / "float.onnx")
    write_npz(folder / "data.npz", **data())
    return quantize(
        folder / "float.onnx",
        config(),
        DatasetSource(path=str(folder / "data.npz")),
        run=run or SilentRun(),
        threads=1,
        provisions=Provisions(device=device),  # type: ignore[arg-type]
    )


@pytest.mark.usefixtures("driver")
def test_a_build_for_cpus_is_told(tmp_path: Path) -> None:
    run = Log()
    result = quantized(tmp_path, "gpu", run)
    assert result.report.gpu is not None
    assert result.report.gpu.statistics_provider == result.report.gpu.float_provider == "CPUExecutionProvider"
    assert "this onnxruntime has" in (result.report.gpu.missing or "")
    assert ("warning", f"float models run on the CPU: {result.report.gpu.missing}") in run.messages
    on_cpu = quantized(tmp_path, "cpu")
    assert on_cpu.report.gpu is None
    assert on_cpu.model == result.model


@pytest.mark.usefixtures("driver")
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_cannot_be_loaded_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build has it, and its libraries do not fit: onnxruntime would run on the CPU and say nothing."""
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert providers_of("auto") == ["CPUExecutionProvider"]
    assert "cannot load CUDAExecutionProvider" in (find_accelerator("gpu").missing or "")
    with pytest.raises(DeviceNotThereError, match="cannot load CUDAExecutionProvider"):
        providers_of("cuda")


def test_a_gpu_that_is_hidden_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert providers_of("auto") == ["CPUExecutionProvider"]


@pytest.mark.usefixtures("usable")
def test_float_models_run_on_the_gpu_and_the_quantized_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, str]] = []
    real = Session.__init__

    def init(session: Session, *args: object, **options: object) -> None:
        real(session, *args, **options)  # type: ignore[arg-type]
        made.append((session._what, session.provider))

    monkeypatch.setattr(Session, "__init__", init)
    result = quantized(tmp_path, "gpu")
    figures = result.report.gpu
    assert figures is not None
    assert (figures.statistics_provider, figures.float_provider, figures.missing) == (STAND_IN, STAND_IN, None)
    assert figures.quantized_provider == "CPUExecutionProvider"
    assert ("float model with its inner tensors", STAND_IN) in made
    assert ("float model", STAND_IN) in made
    assert {provider for what, provider in made if what == "quantized model"} == {"CPUExecutionProvider"}
    made.clear()
    assert without_provenance(quantized(tmp_path, "cpu").model) == without_provenance(result.model)
    assert {provider for _, provider in made} == {"CPUExecutionProvider"}


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_session_that_runs_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [("CUDAExecutionProvider", {}), "CPUExecutionProvider"]
    monkeypatch.setattr("worker.quantizer.runtime.session.providers_of", lambda device: wanted)
    with pytest.raises(DeviceNotThereError, match="with CPUExecutionProvider and not with CUDAExecutionProvider"):
        Session(network().SerializeToString(), threads=1, settings=SessionSettings(device="cuda"))


@pytest.mark.usefixtures("usable")
def test_a_gpu_without_memory_is_a_limit_that_was_met(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(network().SerializeToString(), threads=1, settings=SessionSettings(device="cuda"))

    def run(*_: object) -> None:
        raise RuntimeError("BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 9")

    monkeypatch.setattr(session, "_session", SimpleNamespace(run=run))
    with pytest.raises(ResourceLimitError) as caught:
        session.run({})
    assert caught.value.where["resource"] == "gpu_memory"
    assert caught.value.hint
    with pytest.raises(RuntimeError), gpu_memory("model", on_gpu=False):
        run()


def test_statistics_of_a_gpu_are_kept_apart_from_those_of_a_cpu() -> None:
    assert Accelerator().origin == replace(Accelerator(), missing="none", is_wanted=True).origin == {}
    assert Accelerator("cuda", "CUDAExecutionProvider").origin["provider"] == "CUDAExecutionProvider"
