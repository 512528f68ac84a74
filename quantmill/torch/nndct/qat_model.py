"""What ``QatProcessor.trainable_model`` gives: the quantized network with Vitis AI's switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from quantmill.torch.nndct.errors import NotOfferedError
from quantmill.torch.nndct.recording import WarmUp, at_positions
from quantmill.torch.qat import QatModule, Start

# Samples of the first batches in training mode that ranges of activations are taken from.
WARM_UP_SAMPLES = 256
_LEFT = "warm_up_left"


class TrainableModel(QatModule):
    """A quantized network whose ranges of activations are found anew by the first samples that it is trained with.

    Args:
        start: where it starts.
        device: where it computes.
    """

    def __init__(self, start: Start, device: torch.device) -> None:
        super().__init__(start, device)
        quantizers = getattr(self, self._quantizers)
        # in the state, so that a network that goes on with its training does not begin anew
        quantizers.register_buffer(_LEFT, torch.tensor(WARM_UP_SAMPLES, device=device))
        self._warm_up: WarmUp | None = None
        self._is_warming = True
        self.register_load_state_dict_post_hook(_read_warm_up)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network on the arguments that the module takes; gives what the module returns.

        Raises:
            ExampleInputsError: other arguments than tensors differ from those that the module was exported with.
            EngineError: in warm-up, an activation is not finite; names the tensor.
        """
        if self.training and self._is_warming and self._twin.rounding:
            self._see(self._feeds(args, kwargs))
        return super().forward(*args, **kwargs)

    @property
    def is_warming_up(self) -> bool:
        """True as long as training mode finds ranges of activations."""
        return self._is_warming

    @property
    def is_untrained(self) -> bool:
        """True if its warm-up has not begun."""
        return int(self._left) == WARM_UP_SAMPLES

    def start_at(self, document: Mapping[str, Any]) -> Self:
        """Start from the positions of a calibration, without warm-up.

        Args:
            document: of ``quant_info.read``, for the same graph.

        Raises:
            QuantInfoError: a tensor is missing, or has another type there.
        """
        self._twin.follow(at_positions(self.start.work.filled.draft, document))
        return self.disable_warmup()

    def enable_quant(self) -> Self:
        """Round weights and activations."""
        self._twin.rounding = True
        return self

    def disable_quant(self) -> Self:
        """Compute in float; what the target approximates, such as the DPU's average pooling, stays approximated."""
        self._twin.rounding = False
        return self

    def enable_warmup(self) -> Self:
        """Find the ranges of activations anew, by the next samples that are let through in training mode."""
        return self._warm(WARM_UP_SAMPLES)

    def disable_warmup(self) -> Self:
        """Leave the ranges as they are; what is learned from now on is kept."""
        return self._warm(0)

    def freeze_quant(self) -> Self:
        """Let scales stay as they are."""
        self.disable_warmup()
        return self.freeze_scales()

    def unfreeze_quant(self) -> Self:
        """Let scales be trained."""
        return self.unfreeze_scales()

    def freeze_bn_stats(self) -> Self:
        """Nothing is left to do: batch norms compute with the statistics that they had, folded into their layers."""
        return self

    def fuse_conv_bn(self) -> Self:
        """Nothing is left to do: batch norms are folded into their layers from the start."""
        return self

    def dump_blob(self, *args: Any, **kwargs: Any) -> None:
        """Refused.

        Raises:
            NotOfferedError: always.
        """
        raise NotOfferedError("dump_blob is not offered", hint="Register forward hooks, or read the report.")

    def _warm(self, samples: int) -> Self:
        self._left.fill_(samples)
        self._is_warming, self._warm_up = samples > 0, None
        return self

    @property
    def _left(self) -> Tensor:
        left: Tensor = getattr(getattr(self, self._quantizers), _LEFT)
        return left

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _see(self, feeds: dict[str, Tensor]) -> None:
        start = self.start
        if self._warm_up is None:
            self._warm_up = WarmUp(self._twin, start.work.filled.draft, start.config, WARM_UP_SAMPLES)
        first = next((feeds[name] for name in start.exported.sampled), None)
        samples = 1 if first is None else first.shape[0]
        self._warm_up.see(feeds, samples, threads=start.work.services.threads)
        self._left.sub_(samples).clamp_(min=0)
        if int(self._left) == 0:
            self._is_warming, self._warm_up = False, None


def _read_warm_up(module: TrainableModel, keys: Any) -> None:
    module._is_warming, module._warm_up = int(module._left) > 0, None
