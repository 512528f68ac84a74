"""An ONNX model and data go in, a quantized model comes out: what the command ``quantmill quantize`` does."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from quantmill.columns import Columns
from quantmill.running import Order, Quantized, WorkOptions, as_recipe, model_file, output_path, quantize_into
from service.contracts.arguments import checked
from service.contracts.command_errors import FileAccessError
from service.contracts.dataset import PreprocessingSpec, parse_preprocessing
from service.contracts.documents import Config
from service.contracts.errors import DatasetArraysError
from service.contracts.runner import DatasetSource

Data = str | Path | Mapping[str, Any]
Preprocessing = str | Mapping[str, Any] | PreprocessingSpec
_HINT = "Give one array of numbers per model input, by its name, each [samples, ...], and labels under 'labels'."


@checked
def quantize(
    model: str | Path | Any,
    calibration: Data | None = None,
    evaluation: Data | None = None,
    config: Config = "int8",
    *,
    preprocessing: Preprocessing | None = None,
    evaluation_preprocessing: Preprocessing | None = None,
    **options: Unpack[WorkOptions],
) -> Quantized:
    """Quantize an ONNX model, and measure what that cost.

    Args:
        model: path of the float model, or an onnx.ModelProto.
        calibration: path of a dataset (a file or a folder), or arrays by the names of the model's inputs, such as
            {"input": images, "labels": labels}; None: the config calibrates on random data, or not at all.
        evaluation: what both models are compared on, given like ``calibration``; None: the calibration data.
        config: a preset's name, a config as a dict (AMD Quark's too), the path of a config file (.json, .yaml or
            .toml), or a QuantizationConfig.
        preprocessing: how the data becomes model inputs: a name such as "imagenet_torchvision", a dict, or a
            PreprocessingSpec.
        evaluation_preprocessing: of the evaluation data; None: the same.
        client: of a service that does the work, such as quantmill.Client("http://127.0.0.1:8000"); None: this
            process does.
        output: path of the quantized model, such as "quantized.onnx"; None: a temporary file, deleted when
            this process ends.
        threads: CPU threads of the work in this process; None: one per core.
        run: is told the progress of the work in this process, and may cancel it.
        metrics: Python functions by name, such as {"f1": f1}, besides the config's metrics; each takes an output
            over all samples and returns a number.

    Raises:
        InvalidConfigError: the config is not valid, or names nodes that are not there.
        ModelError: the model cannot be used.
        DatasetError: the data cannot be used.
        FileAccessError: a file is not there, or the output would be written over it.
        QuantmillError: whatever else the engine or the service refuses.
    """
    recipe, path = as_recipe(config, options.get("metrics")), output_path(options.get("output"), "quantized.onnx")
    spec = parse_preprocessing(preprocessing)
    other = spec if evaluation_preprocessing is None else parse_preprocessing(evaluation_preprocessing)
    with tempfile.TemporaryDirectory(prefix="quantmill-") as name:
        folder = Path(name)
        file = model_file(model, folder)
        for given in (file, calibration, evaluation):
            _check_file(given, path)
        order = Order(
            model=file,
            name=file.name[:200],
            calibration=None if calibration is None else _source(calibration, spec, folder / "calibration"),
            evaluation=None if evaluation is None else _source(evaluation, other, folder / "evaluation"),
        )
        return quantize_into(path, order, recipe, options)


def _check_file(given: Data | None, output: Path) -> None:
    if given is None or isinstance(given, Mapping):
        return
    if not Path(given).exists():
        raise FileAccessError(f"{given} cannot be read: there is no such file.", hint="Check the path.")
    if Path(given).resolve() == output.resolve():
        raise FileAccessError(f"{given} would be written over.", hint="Give another output.")


def _source(data: Data, preprocessing: PreprocessingSpec, place: Path) -> DatasetSource:
    """The file of a dataset: a folder is packed, arrays are written."""
    if isinstance(data, Mapping):
        path = place.with_suffix(".npz")
        _write(data, path)
    elif Path(data).is_dir():
        from worker.quantizer.data.media.packing import pack_folder

        path = place.with_suffix(".tar")
        pack_folder(Path(data), path)
    else:
        path = Path(data)
    return DatasetSource(path=str(path.absolute()), preprocessing=preprocessing)


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # lists of several lengths, a tensor that has no array
        raise DatasetArraysError(f"{name!r} cannot be an array: {error}", hint=_HINT) from None


def _write(data: Mapping[str, Any], path: Path) -> None:
    arrays = {str(name): _array(str(name), values) for name, values in data.items()}
    unfit = [name for name, array in arrays.items() if array.ndim == 0 or array.dtype.kind not in "biuf"]
    if unfit or not arrays:
        raise DatasetArraysError(f"not arrays of numbers: {', '.join(unfit) or 'nothing is given'}", hint=_HINT)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        columns = Columns(Path(folder))
        try:
            columns.append(arrays)
        except ValueError as error:
            raise DatasetArraysError(str(error), hint=_HINT) from None
        columns.pack(path)
