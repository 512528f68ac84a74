"""ModelQuantizer, with Quark's signature: in this process, or on a service."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from quantmill.quark.documents import Documented, Functions
from quantmill.quark.quantization.config.config import Config, QConfig, QuantizationConfig
from quantmill.quark.readers import FolderReader, RandomDataReader, store
from quantmill.running import model_file
from service.contracts.command_errors import FileAccessError
from service.contracts.config import QuantizationConfig as Recipe
from service.contracts.data_checks import check_data_given
from service.contracts.errors import CalibrationMissingError, InvalidConfigError, InvalidRequestError
from service.contracts.report import Report
from service.contracts.runner import DatasetSource
from service.cores import available_cores
from service.quark import read_config, translate_document, use_quark_words

if TYPE_CHECKING:
    import onnx

    from service.client import Client
    from worker.quantizer.run.interface import Run

_LOG = logging.getLogger("quantmill.quark")


class ModelQuantizer:
    """Quantizes models as a config of Quark's says.

    Args:
        config: a Config, a QConfig, or a QuantizationConfig.
        client: of a service that does the work; None: this process does. A service calls no Python functions.
        threads: CPU threads of the work in this process; None: one per core.
        run: is told the progress of the work in this process, and may cancel it.

    Attributes:
        report: of the last model; None before.
        notes: what holds otherwise than in Quark; also logged, by ``logging``.
        recipe: the config as it was translated.

    Raises:
        InvalidConfigError: the config cannot be translated; names the keys.
    """

    def __init__(
        self,
        config: Config | QConfig | QuantizationConfig,
        *,
        client: Client | None = None,
        threads: int | None = None,
        run: Run | None = None,
    ) -> None:
        if not isinstance(config, Documented):
            raise InvalidConfigError(
                f"config is {type(config).__name__}, no config of Quark's", hint="Give a Config or a QConfig."
            )
        self._functions: Functions = {}
        self._config = config.document(self._functions)
        self._client, self._run = client, run
        self._threads = threads or available_cores()
        self.report: Report | None = None
        self.notes: tuple[str, ...] = ()
        self.recipe = self._translated({})

    def quantize_model(
        self,
        model_input: str | Path | onnx.ModelProto,
        model_output: str | Path | None = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | Path | None = None,
        algorithms: Any = None,
    ) -> onnx.ModelProto | None:
        """Quantize a model; what that cost stands in ``report``.

        Args:
            model_input: path of the float ONNX model, or the model.
            model_output: path of the quantized one; None: it is returned.
            calibration_data_reader: has ``get_next() -> {input: array} | None``; its data is streamed to disk.
            calibration_data_path: in place of a reader: a folder of .npy files, or an .npz or .safetensors file.
            algorithms: None; they belong into the config.

        Returns:
            The model, or None if ``model_output`` says where it goes.

        Raises:
            CalibrationMissingError: there is no data, and ``UseRandomData`` is not set.
            InvalidRequestError: the arguments contradict each other.
            QuantmillError: whatever else the engine or the service refuses.
        """
        if algorithms is not None:
            raise InvalidRequestError("algorithms belong into the config", hint="Give QConfig an algo_config.")
        if calibration_data_reader is not None and calibration_data_path is not None:
            raise InvalidRequestError("give calibration_data_reader or calibration_data_path, not both")
        random = calibration_data_reader if isinstance(calibration_data_reader, RandomDataReader) else None
        self.recipe = self._translated({} if random is None else random.options)
        given = calibration_data_path is not None or (calibration_data_reader is not None and random is None)
        try:
            check_data_given(self.recipe, calibration=given, evaluation=False, pointer="/calibration_data_reader")
        except CalibrationMissingError as error:
            use_quark_words(error)
            raise
        output = None if model_output is None else Path(model_output)
        if output is not None and not output.absolute().parent.is_dir():
            raise FileAccessError(f"{output} cannot be written: there is no such folder.", hint="Make it.")
        with TemporaryDirectory(prefix="quantmill-") as scratch:
            folder = Path(scratch)
            model = model_file(model_input, folder)
            reader = calibration_data_reader if random is None else None
            data = self._data(reader, calibration_data_path, model, folder)
            made = folder / "quantized.onnx"
            if self._client is None:
                functions = {name: _with_tensors(function) for name, function in self._functions.items()}
                self.report = _here(model, self.recipe, data, made, functions, threads=self._threads, run=self._run)
            else:
                self.report = _there(self._client, model, self.recipe, data, made)
            return _handed_over(made, output)

    def _translated(self, options: Mapping[str, Any]) -> Recipe:
        config = self._config
        if options:
            inner = config.get("global_quant_config", config)
            inner = {"preset": inner} if isinstance(inner, str) else inner
            changed = {**inner, "extra_options": {**(inner.get("extra_options") or {}), **options}}
            config = {"global_quant_config": changed} if "global_quant_config" in config else changed
        document = {"format": "quark", "config": config}
        recipe = read_config(document)
        translation = translate_document(document)
        self.notes = () if translation is None else tuple(str(note) for note in translation.notes)
        for note in self.notes:
            _LOG.info(note)
        return recipe

    def _data(self, reader: Any, path: str | Path | None, model: Path, folder: Path) -> DatasetSource | None:
        if path is not None and not Path(path).is_dir():
            return DatasetSource(path=str(Path(path).absolute()))
        if path is not None:
            from worker.quantizer.intake.inspect import tensor_infos
            from worker.quantizer.intake.loading import read_proto

            reader = FolderReader(Path(path), [tensor.name for tensor in tensor_infos(read_proto(model))[0]])
        if reader is None:
            return None
        return store(reader, folder / "calibration.npz", limit=self.recipe.calibration_samples)


def _with_tensors(function: Callable[..., Any]) -> Callable[..., float]:
    """The function with tensors of torch in place of arrays, as Quark calls it; with arrays where there is no torch."""

    def called(*outputs: Any) -> Any:
        try:
            import torch
        except ModuleNotFoundError:
            return function(*outputs)
        return function(*(torch.from_numpy(output) for output in outputs))

    return called


def _here(
    model: Path,
    recipe: Recipe,
    data: DatasetSource | None,
    made: Path,
    functions: Mapping[str, Callable[..., float]],
    *,
    threads: int,
    run: Run | None,
) -> Report:
    from worker.quantizer.pipeline import Provisions, quantize
    from worker.quantizer.run.interface import SilentRun

    result = quantize(
        model,
        recipe,
        data,
        run=run or SilentRun(),
        threads=threads,
        provisions=Provisions(functions=functions, scratch=made.parent, data_file=f"{made.name}.data"),
    )
    result.content.move(made)
    return result.report


def _there(client: Client, model: Path, recipe: Recipe, data: DatasetSource | None, made: Path) -> Report:
    uploaded = client.push_model(model)
    dataset = None if data is None else client.push_dataset(Path(data.path), data.preprocessing)
    model_id = client.wait_ready(uploaded).id
    job = client.submit(
        model=model_id,
        calibration=None if dataset is None else client.wait_ready(dataset).id,
        config=recipe,
        name=model.name[:200],
    )
    client.wait_succeeded(job.id)
    client.download(job, made)
    return client.report(job.id)


def _handed_over(made: Path, output: Path | None) -> onnx.ModelProto | None:
    """Put the file into its place, whole or not at all; without a place, read it."""
    import onnx

    if output is None:
        return onnx.load(made)
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        part.write_bytes(made.read_bytes())
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
    return None


__all__ = ["ModelQuantizer"]
