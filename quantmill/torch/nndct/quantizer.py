"""The object behind ``torch_quantizer``: it collects data in mode calib, and computes quantized in mode test.

One process calibrates: data goes through ``quant_model``, ``export_quant_config`` quantizes and writes the result.
Another one tests: it finds that result, makes sure that it was made for the same module, target and config, and runs
it.
"""

from __future__ import annotations

import inspect
import tempfile
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from torch import nn

from quantmill.torch.data import store
from quantmill.torch.nndct import quant_info
from quantmill.torch.nndct.deployment import OnnxExports, export_as_far
from quantmill.torch.nndct.errors import StageError
from quantmill.torch.nndct.recording import CalibrationModel, Recorder
from quantmill.torch.quantize import QuantizedModule, quantize_exported
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import InvalidRequestError
from service.contracts.report import Report

Mode = Literal["calib", "test"]

_FORWARD = "Run 100 to 1000 samples of the training data through quantizer.quant_model first."


class TorchQuantizer(OnnxExports):
    """Made by ``torch_quantizer``, which describes the arguments.

    Args:
        mode: 'calib' or 'test'.
        module: float, in eval mode, on its device.
        input_args: example arguments.
        output_dir: where quant_info.json and the quantized model lie.
        config: resolved, without finetuning.
        target: as it was given.
        notes: what is done in another way than in Vitis AI.

    Attributes:
        report: what quantizing cost; None before ``export_quant_config``, and in mode test.
        notes: see above.

    Raises:
        QuantInfoError: in mode test, quant_info.json is missing, or was made for something else.
        ExportError: the module cannot be exported.
    """

    SCRIPT_HINT = "export_onnx_model() writes ONNX; quantizer.quant_model in mode 'test' is a module that runs it."

    def __init__(
        self,
        mode: Mode,
        module: nn.Module,
        input_args: Any,
        output_dir: Path,
        config: QuantizationConfig,
        *,
        target: str | None,
        notes: tuple[str, ...],
    ) -> None:
        self._mode, self._folder, self._config = mode, output_dir, config
        self._exported = export_as_far(module, input_args)
        self._forward = inspect.signature(module.forward)
        self._fingerprint = quant_info.fingerprint(self._exported.onnx_path, target, config.model_dump(mode="json"))
        self._finetuning: Recorder | None = None
        self._made: tuple[int, Path] | None = None  # calls seen, quantized model
        self.notes = notes
        self.report: Report | None = None
        if mode == "calib":
            self._recorder = Recorder()
            self._model: nn.Module = CalibrationModel(module, self._recorder)
        else:
            self._info, path = quant_info.read(output_dir, self._fingerprint)
            self._made = (0, path)
            self._model = QuantizedModule(path, self._exported.call, self._exported.result)

    @property
    def quant_model(self) -> nn.Module:
        """Mode calib: the float module, recording what it is called with. Mode test: the quantized model."""
        return self._model

    def fast_finetune(self, run_fn: Callable[..., Any], args: Sequence[Any]) -> None:
        """Let ``export_quant_config`` finetune by AdaQuant on what ``run_fn(*args)`` feeds through ``quant_model``.

        The samples count for calibration as well. They wait on disk until then.

        Args:
            run_fn: runs ``quant_model``, which is among its arguments, on a data set.
            args: of ``run_fn``.

        Raises:
            StageError: in mode test; or ``run_fn`` does not call ``quant_model``.
        """
        self._needs("calib", "fast_finetune")
        recorder = Recorder()
        if not isinstance(self._model, CalibrationModel):
            raise TypeError("only mode calib records")
        with self._model.recording(recorder):
            run_fn(*args)
        if not recorder.calls:
            raise StageError("run_fn did not call quant_model", hint="Pass quantizer.quant_model among its arguments.")
        self._finetuning, self._made = recorder, None

    def load_ft_param(self) -> None:
        """Load the parameters that ``fast_finetune`` of mode calib has stored: ``quant_model`` computes with them.

        Warns where finetuning has made the network worse and was undone.

        Raises:
            StageError: in mode calib.
            QuantInfoError: the calibration did not finetune; or its result is missing, or was made for something else.
        """
        self._needs("test", "load_ft_param")
        document, path = quant_info.read(self._folder, self._fingerprint)
        told = quant_info.finetuning_of(document, self._folder / quant_info.FILE)
        if not isinstance(self._model, QuantizedModule):
            raise TypeError("mode test runs a quantized model")
        self._model.load_model(path)
        self._made = (0, path)
        if not told["kept"]:
            warnings.warn(f"fast finetuning changed nothing: {told['summary']}", stacklevel=2)

    def quantize(self, run_fn: Callable[..., Any], args: Sequence[Any], ft_args: Sequence[Any] | None = None) -> None:
        """Finetune if asked to, calibrate by ``run_fn(*args)``, and export: all of mode calib in one call.

        Args:
            run_fn: runs ``quant_model``, which is among its arguments, on a data set.
            args: of ``run_fn``, for calibration.
            ft_args: of ``run_fn``, for ``fast_finetune``; None: no finetuning.

        Raises:
            StageError: in mode test; or ``run_fn`` does not call ``quant_model``.
            QuantmillError: whatever the engine refuses.
        """
        self._needs("calib", "quantize")
        if ft_args is not None:
            self.fast_finetune(run_fn, ft_args)
        run_fn(*args)
        self.export_quant_config()

    def test(self, run_fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        """What ``run_fn(*args)`` gives while ``quant_model`` is the quantized model, finetuned if it was finetuned.

        Works in both modes, so that one process can calibrate and test.

        Args:
            run_fn: runs ``quant_model``, which is among its arguments, on a data set.
            args: of ``run_fn``.

        Raises:
            StageError: in mode calib, no data was seen.
            QuantmillError: whatever the engine refuses.
        """
        if not isinstance(self._model, CalibrationModel):
            if self._info["fast_finetuned"]:
                self.load_ft_param()
            return run_fn(*args)
        quantized = QuantizedModule(self._quantized(), self._exported.call, self._exported.result)
        with self._model.standing_in(quantized):
            return run_fn(*args)

    def deploy(self, run_fn: Callable[..., Any], args: Sequence[Any], fmt: str = "onnx") -> Path:
        """Run the quantized model by ``run_fn(*args)`` as ``test`` does, and write it to the quantizer's folder.

        Args:
            run_fn: as for ``test``; one batch is enough.
            args: of ``run_fn``.
            fmt: 'onnx'; Vitis AI's own default 'xmodel', and 'torch_script', are refused.

        Returns:
            Where it was written.

        Raises:
            InvalidRequestError: there is no such format.
            NotOfferedError: see above.
            StageError: in mode calib, no data was seen.
        """
        if fmt == "xmodel":
            self.export_xmodel()
        if fmt == "torch_script":
            self.export_torch_script()
        if fmt != "onnx":
            raise InvalidRequestError(f"fmt is {fmt!r}", hint="It is 'onnx'.")
        self.test(run_fn, args)
        return self.export_onnx_model()

    def export_quant_config(self) -> None:
        """Quantize by the data seen so far; writes quant_info.json and the quantized model for mode test.

        Raises:
            StageError: in mode test, or no data was seen.
            QuantmillError: whatever the engine refuses.
        """
        self._needs("calib", "export_quant_config")
        self._quantized()

    def _quantized(self) -> Path:
        """The quantized model; made anew if more data has come."""
        if self._mode == "test" and self._made is not None:
            return self._made[1]
        recorders = [recorder for recorder in (self._finetuning, self._recorder) if recorder is not None]
        calls = sum(recorder.calls for recorder in recorders)
        if not calls:
            raise StageError("quant_model has not seen any data yet", hint=_FORWARD)
        if self._made is None or self._made[0] != calls:
            self._made = (calls, self._quantize(recorders))
        return self._made[1]

    def _quantize(self, recorders: Sequence[Recorder]) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._exported.name}_calibrated.onnx"
        with tempfile.TemporaryDirectory(prefix="quantmill-") as folder:
            batches = chain.from_iterable(recorder.batches(self._forward) for recorder in recorders)
            data = store(batches, self._exported, Path(folder) / "calibration.npz", role="calls of quant_model")
            made = quantize_exported(self._exported, data, self._with_finetuning(Path(folder)), output=path)
        self.report = made.report
        finetuning = made.report.algorithms[-1] if self._finetuning is not None else None  # the last one of the config
        quant_info.write(self._folder, path, self._fingerprint, finetuning=finetuning, notes=self.notes)
        return path

    def _with_finetuning(self, folder: Path) -> QuantizationConfig:
        """The config, and AdaQuant where it was asked for, on the samples that it was given.

        As in Vitis AI: weights and biases by Adam with steps in proportion to each weight, the layer's float output
        behind its activation function as the goal, and what makes the network worse is undone.
        """
        if self._finetuning is None:
            return self._config
        batches = self._finetuning.batches(self._forward)
        samples = store(batches, self._exported, folder / "finetuning.npz", role="calls of fast_finetune").samples
        document = self._config.model_dump(mode="json")
        document["algorithms"].append({"method": "adaquant", "data_size": samples, "selective_update": True})
        return parse_config(document)

    def _needs(self, mode: Mode, what: str) -> None:
        if self._mode != mode:
            raise StageError(
                f"{what} belongs to mode {mode!r}", hint=f"This quantizer was made for mode {self._mode!r}."
            )


__all__ = ["Mode", "TorchQuantizer"]
