"""Algorithms beyond calibration: entries of ``algo_config``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from quantmill.quark.documents import Documented, Functions, plain
from service.contracts.presets.base import QUARK_SEED

_ALL = 1_000_000_000


class AlgoConfig(Documented):
    """An algorithm. What has Quark's default is left out of the JSON form, where it says the same."""

    name: ClassVar[str]

    def __init_subclass__(cls, *, name: str | None = None) -> None:
        if name is not None:
            cls.name = name

    def document(self, functions: Functions) -> dict[str, Any]:
        """Its name, and every field that differs from its default."""
        given = {
            field.name: getattr(self, field.name)
            for field in fields(self)  # type: ignore[arg-type]  # every algorithm is a dataclass
            if getattr(self, field.name) != field.default
        }
        return {"name": self.name, **{key: plain(value, functions, at=key) for key, value in given.items()}}


@dataclass
class SmoothQuantConfig(AlgoConfig, name="smooth_quant"):
    """SmoothQuant."""

    alpha: float = 0.5


@dataclass
class CLEConfig(AlgoConfig, name="cle"):
    """Cross-layer equalization."""

    cle_balance_method: str = "max"
    cle_steps: int = 1
    cle_weight_threshold: float = 0.5
    cle_scale_append_bias: bool = True
    cle_scale_use_threshold: bool = True
    cle_total_layer_diff_threshold: float = 1.9e-7


@dataclass
class BiasCorrectionConfig(AlgoConfig, name="bias_correction"):
    """Bias correction."""


@dataclass
class GPTQConfig(AlgoConfig, name="gptq"):
    """GPTQ, which is refused."""


@dataclass
class QuarotConfig(AlgoConfig, name="quarot"):
    """Rotation, which is refused."""


@dataclass
class FastFinetuneConfig(AlgoConfig, name="adaround"):
    """What AdaRoundConfig and AdaQuantConfig have in common."""

    optim_device: str = "cpu"
    infer_device: str = "cpu"
    fixed_seed: int = QUARK_SEED
    data_size: int = _ALL
    batch_size: int = 1
    num_batches: int = 1
    num_iterations: int = 1000
    learning_rate: float = 0.1
    early_stop: bool = False
    output_index: int = 0
    lr_adjust: Sequence[float] | None = None
    target_op_type: Sequence[str] | None = None
    selective_update: bool = False
    update_bias: bool = False
    output_qdq: bool = False
    drop_ratio: float = 1.0
    mem_opt_level: int = 1
    cache_dir: str | None = None
    log_period: int = 100
    ref_model_path: str | None = None
    dynamic_batch: bool = False
    parallel: bool = False
    reg_param: float = 0.01
    beta_range: Sequence[float] = (20, 2)
    warm_start: float = 0.2
    select_max_mem_layer: bool = False
    num_workers: int = 1
    pin_memory: bool = False
    use_gds: bool = False


@dataclass
class AdaRoundConfig(FastFinetuneConfig):
    """AdaRound: every weight up or down."""


@dataclass
class AdaQuantConfig(FastFinetuneConfig, name="adaquant"):
    """AdaQuant: weights move by themselves."""

    num_iterations: int = 3000
    learning_rate: float = 1e-5


@dataclass
class AutoMixprecisionConfig(AlgoConfig, name="auto_mixprecision"):
    """Some layers in other types; the functions are called in this process.

    ``metric_evaluate_fn`` and ``evaluate_function`` take the model's output over all samples and return a number, more
    being better; ``metric_distance_fn`` takes the float model's output and the quantized one's, less being better.
    """

    target_layer_config: Any = None
    target_op_type: Sequence[str] | None = None
    subgraph_json: str | None = None
    include_layers: Sequence[Any] | None = None
    exclude_layers: Sequence[Any] | None = None
    data_size: int = 0
    metric_output_index: int = 0
    metric_distance_fn: Callable[..., float] | str | None = None
    metric_evaluate_fn: Callable[..., float] | str | None = None
    metric_default: str = "l2"
    metric_threshold: float | None = None
    metric_optimize_object: str = "speed"
    sensitivity_cache_file: str | None = None
    worker_num: int = 1
    dual_quant_nodes: bool = False
    no_input_qdq_shared: bool = False
    shared_param_mode: str = "propagate"
    # of releases before 0.13
    act_target_quant_type: Any = None
    weight_target_quant_type: Any = None
    bias_target_quant_type: Any = None
    output_index: int = 0
    l2_target: float | None = None
    top1_acc_target: float | None = None
    evaluate_function: Callable[..., float] | str | None = None
    num_target: int = 0
    target_tensors: Sequence[str] = ()
    target_indices: Sequence[int] = ()
    exclude_indices: Sequence[int] = ()
    auto_mix_use_fast_ft: bool = False


__all__ = [
    "AdaQuantConfig",
    "AdaRoundConfig",
    "AlgoConfig",
    "AutoMixprecisionConfig",
    "BiasCorrectionConfig",
    "CLEConfig",
    "FastFinetuneConfig",
    "GPTQConfig",
    "QuarotConfig",
    "SmoothQuantConfig",
]
