"""A module becomes its quantized network in torch, to be trained in a loop of the user's own.

network = quantmill.torch.prepare_qat(module, example_inputs, "int8", calibration_loader)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
...
network.to_onnx("quantized.onnx")
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from quantmill.running import as_recipe, output_path
from quantmill.torch.data import Stored, store
from quantmill.torch.export import Exported, export
from quantmill.torch.verification import threads_here
from service.contracts.arguments import checked
from service.contracts.config import QuantizationConfig
from service.contracts.documents import Config
from service.contracts.errors import InvalidConfigError, InvalidRequestError, UnsupportedModelError
from service.contracts.report import Report
from service.contracts.runner import DatasetSource
from worker.quantizer.pipeline import Quantizing, fill
from worker.quantizer.refine.draft import Draft
from worker.quantizer.run.interface import Run, SilentRun
from worker.quantizer.training.twin import Twin, free_name

_METHOD = "qat"
# The scales of grids that are not trained: those of 8-bit floats.
_FIXED = "fixed_scales"


@checked
def prepare_qat(
    module: nn.Module,
    example_inputs: Any,
    config: Config,
    calibration_loader: Iterable[Any],
    *,
    dynamic_batch: bool = True,
    learn_zero_points: bool = False,
    threads: int | None = None,
    run: Run | None = None,
) -> QatModule:
    """Export and quantize a module, and return the quantized network as a module that can be trained.

    The algorithms of the config run first; training starts where they end.

    Args:
        module: see ``quantmill.torch.export``; is left as it was.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        config: as in ``quantmill.torch.quantize``: mode static, without the algorithm qat.
        calibration_loader: as in ``quantmill.torch.quantize``; the first values of all scales come from it.
        dynamic_batch: see ``quantmill.torch.export``.
        learn_zero_points: let zero points of asymmetric activations move too.
        threads: CPU threads of the work here; None: one per core.
        run: is told the progress of the work here, and may cancel it.

    Raises:
        InvalidConfigError: the config is not valid, its mode is not static, it holds qat, or it quantizes nothing.
        NotDifferentiableError: an operator has no derivative here; names the node.
        ExportError: the module cannot be exported; names file and line.
        LoaderError: a batch does not fit the module.
        QuantmillError: whatever else the engine refuses.
    """
    recipe = as_recipe(config).config
    check_trainable(recipe)
    folder = tempfile.TemporaryDirectory(prefix="quantmill-")
    exported = export(module, example_inputs, Path(folder.name) / "model.onnx", dynamic_batch=dynamic_batch)
    path, limit = Path(folder.name) / "calibration.npz", recipe.calibration_samples
    calibration = store(calibration_loader, exported, path, role="calibration loader", limit=limit)
    start = Start.of(
        exported, calibration, recipe, threads=threads, run=run, keep=folder, learn_zeros=learn_zero_points
    )
    return QatModule(start, device_of(module)).train(module.training)


def device_of(module: nn.Module) -> torch.device:
    """Where a module's parameters and buffers are; the CPU if it has none."""
    return next((held.device for held in (*module.parameters(), *module.buffers())), torch.device("cpu"))


def check_trainable(config: QuantizationConfig) -> None:
    """Refuse what is not trained by the user.

    Raises:
        InvalidConfigError: the mode is not static, or the config holds qat itself; points to the place.
    """
    if config.mode != "static":
        raise InvalidConfigError(
            f"mode {config.mode} cannot be trained: it has no ranges of activations",
            hint="Take mode static.",
            pointer="/mode",
        )
    for place, algorithm in enumerate(config.algorithms):
        if algorithm.method == _METHOD:
            raise InvalidConfigError(
                "prepare_qat is for a training loop of your own, the algorithm qat brings one",
                hint="Leave qat out of the algorithms, or give the config to quantmill.torch.quantize.",
                pointer=f"/algorithms/{place}",
            )


@dataclass(frozen=True)
class Start:
    """Where training starts: a calibrated network, and all that is needed to write it.

    Attributes:
        exported: the float model's interface.
        work: of the engine, its plan filled.
        learn_zeros: whether zero points move.
        keep: what has to be there as long as this: the folder of the calibration data.
    """

    exported: Exported
    work: Quantizing
    learn_zeros: bool = False
    keep: Any = None

    @classmethod
    def of(
        cls,
        exported: Exported,
        calibration: Stored,
        config: QuantizationConfig,
        *,
        keep: Any,
        threads: int | None = None,
        run: Run | None = None,
        learn_zeros: bool = False,
    ) -> Start:
        """Calibrate an exported module.

        Raises:
            InvalidConfigError: nothing is quantized.
            QuantmillError: whatever else the engine refuses.
        """
        source = DatasetSource(path=str(calibration.path.absolute()), preprocessing=calibration.preprocessing)
        work = fill(exported.onnx_path, config, source, run=run or SilentRun(), threads=threads or threads_here())
        if work.is_empty:
            raise InvalidConfigError(
                f"there is nothing to train: {work.preface.notes[-1]}", hint="Let the config quantize some nodes."
            )
        return cls(exported, work, learn_zeros, keep)

    @property
    def config(self) -> QuantizationConfig:
        """Resolved."""
        return self.work.case.config


class QatModule(nn.Module):
    """The quantized network of a module, in torch: made by ``prepare_qat``.

    It takes and returns what the module takes and returns, floats as float32. Parameters have the names that they have
    in the module; what was folded into others (batch norms) or lifted out of the code has names of its own. Scales
    stand under ``quantizers``, as ``growth``: the exponent v of a scale s0 2^v.

    ``train()`` and ``eval()`` make no difference: dropout is gone, and batch norms compute with the statistics that
    they had. Parameters that no output depends on do not require gradients.

    Args:
        start: where it starts.
        device: where it computes; ``to`` moves it.

    Attributes:
        start: see above.

    Raises:
        NotDifferentiableError: an operator has no derivative here; names the node.
        UnsupportedModelError: no output depends on a parameter.
        InvalidRequestError: of ``load_state_dict``: scales that are not trained are others in that state.
    """

    _twin: Twin

    def __init__(self, start: Start, device: torch.device) -> None:
        super().__init__()
        # no child, so that its parameters stand here, under the names that the user knows
        twin = Twin(start.work.filled.draft, device=device, learn_zeros=start.learn_zeros)
        object.__setattr__(self, "_twin", twin)
        self.start, self._call = start, start.exported.call
        twin.masters.graft(self)
        quantizers = nn.Module()
        quantizers.weights, quantizers.activations = twin.weight_grids, twin.activation_grids
        if (fixed := twin.fixed_scales()).numel():
            quantizers.register_buffer(_FIXED, fixed)
        self._quantizers = free_name(self, "quantizers")
        self.add_module(self._quantizers, quantizers)
        self._inputs = tuple(entry.name for entry in start.exported.inputs)
        self._outputs = start.exported.outputs
        structure = self._call.structure
        self._is_plain = all(structure.is_tensor) and structure.names == self._call.slots
        self._idle = frozenset(self._unreached(device))
        for parameter in self._idle:
            parameter.requires_grad_(False)
        self.register_load_state_dict_post_hook(_settle)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the quantized network on the arguments that the module takes; gives what the module returns.

        Raises:
            ExampleInputsError: other arguments than tensors differ from those that the module was exported with.
        """
        made = self._run(self._feeds(args, kwargs))
        result = self.start.exported.result
        if len(self._outputs) == 1 and result.spec.is_leaf():
            return made[self._outputs[0]]
        return result.tree({name: made[own] for name, own in zip(result.names, self._outputs, strict=True)})

    def to_onnx(self, path: str | Path | None = None) -> Path:
        """Write the quantized model, as the engine and the service write it.

        Grids that the target cannot work with are moved before, here too: afterwards this module computes what the
        file computes.

        Args:
            path: of the file; None: a temporary one, gone when this process ends.

        Returns:
            Where it was written.
        """
        path = output_path(path, "quantized.onnx")
        self.start.work.emit(self._settled()).content.move(path)
        return path

    def report(self, loader: Iterable[Any] | None = None) -> Report:
        """What the model that ``to_onnx`` writes costs, against the float model that was prepared.

        Args:
            loader: gives the data that both are compared on, as in ``quantmill.torch.quantize``; None: the calibration
                data.

        Raises:
            LoaderError: a batch does not fit the module.
            QuantmillError: the config's metrics do not fit the data.
        """
        work = self.start.work
        done = work.emit(self._settled())
        if loader is None:
            return work.report(done)
        with tempfile.TemporaryDirectory(prefix="quantmill-") as folder:
            data = store(loader, self.start.exported, Path(folder) / "evaluation.npz", role="loader")
            return work.report(done, DatasetSource(path=str(data.path), preprocessing=data.preprocessing))

    def quantizer_parameters(self) -> list[nn.Parameter]:
        """Scales, and zero points where they are learned."""
        return [parameter for parameter in self._twin.scale_parameters() if parameter not in self._idle]

    def non_quantizer_parameters(self) -> list[nn.Parameter]:
        """Weights, biases, and whatever else of the module is trained."""
        others = {*self._twin.scale_parameters(), *self._idle}
        return [parameter for parameter in self.parameters() if parameter not in others]

    def freeze_scales(self) -> Self:
        """Let scales and zero points stay as they are; before an optimizer or DistributedDataParallel takes over."""
        for parameter in self.quantizer_parameters():
            parameter.requires_grad_(False)
        return self

    def unfreeze_scales(self) -> Self:
        """Let scales and zero points be trained."""
        for parameter in self.quantizer_parameters():
            parameter.requires_grad_(True)
        return self

    def _feeds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
        if self._is_plain and not kwargs and len(args) == len(self._inputs):
            given: Iterable[Any] = args
        else:
            given = self._call.from_call(args, kwargs).values()
        return {name: _as_input(value) for name, value in zip(self._inputs, given, strict=True)}

    def _run(self, feeds: dict[str, Tensor]) -> dict[str, Tensor]:
        """The quantized network's outputs; in float32, whatever autocast asks for: steps are finer than half floats."""
        kind = next(iter(feeds.values())).device.type
        if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
            return self._twin(feeds)  # type: ignore[no-any-return]
        with torch.autocast(device_type=kind, enabled=False):
            return self._twin(feeds)  # type: ignore[no-any-return]

    def _settled(self) -> Draft:
        """The draft as it is emitted, on the target; the network follows it."""
        draft = self._twin.write().on_target(self.start.config)
        self._twin.follow(draft)
        return replace(draft, algorithm=_METHOD)

    def _unreached(self, device: torch.device) -> list[nn.Parameter]:
        """Parameters that no output hangs on.

        Raises:
            UnsupportedModelError: no output hangs on any.
        """
        example = {name: tensor.detach().to(device) for name, tensor in self._call.example.items()}
        outputs = self._run(dict(zip(self._inputs, map(_as_input, example.values()), strict=True))).values()
        reached = [output.sum() for output in outputs if output.requires_grad]
        parameters = list(self.parameters())
        if not reached:
            raise UnsupportedModelError(
                "no output of the network hangs on a parameter, so there is nothing to train",
                hint="Let the module return what is computed before ArgMax, TopK or a comparison.",
            )
        gradients = torch.autograd.grad(reached, parameters, allow_unused=True)
        return [held for held, gradient in zip(parameters, gradients, strict=True) if gradient is None]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        wanted = fn(torch.empty(0)).dtype
        if wanted != torch.float32:
            raise InvalidRequestError(
                f"the quantized network is trained in float32, not in {wanted}",
                hint="Move it by .to(device) alone; autocast around it is switched off within.",
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._twin.move(device_of(self))
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A network of its own with the same values; where it started from is shared."""
        made = type(self)(self.start, device_of(self))
        made.load_state_dict(self.state_dict())
        for own, other in zip(made.parameters(), self.parameters(), strict=True):
            own.requires_grad_(other.requires_grad)
        memo[id(self)] = made.train(self.training)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Refused: a state_dict is what is saved.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(
            "a QatModule is not pickled", hint="Save state_dict(), and load it into what prepare_qat gives."
        )

    def _replicate_for_data_parallel(self) -> Self:
        raise InvalidRequestError(
            "torch.nn.DataParallel copies modules without their graph", hint="Take DistributedDataParallel."
        )


def _settle(module: QatModule, keys: Any) -> None:
    """What hangs on scales and values that were loaded is found anew.

    Raises:
        InvalidRequestError: scales that are not trained are others.
    """
    held: Tensor | None = getattr(getattr(module, module._quantizers), _FIXED, None)
    if held is not None and not torch.equal(held, mine := module._twin.fixed_scales()):
        held.copy_(mine)
        raise InvalidRequestError(
            "the state is one of a network that was calibrated on other data: scales that are not trained differ",
            hint="Call prepare_qat with the calibration data of that network.",
        )
    module._settled()


def _as_input(value: Any) -> Tensor:
    tensor = torch.as_tensor(value)
    return tensor.float() if tensor.is_floating_point() else tensor
