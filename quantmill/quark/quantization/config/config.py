"""The two configs of AMD Quark for ONNX: QuantizationConfig, which Config wraps, and QConfig."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quantmill.quark.documents import Documented, Functions, plain
from quantmill.quark.preset_documents import preset_fields
from quantmill.quark.quantization.config.algorithm import AdaQuantConfig, AdaRoundConfig, AlgoConfig
from quantmill.quark.quantization.config.spec import QLayerConfig, QTensorConfig
from quantmill.quark.words import CalibrationMethod, QuantFormat, QuantType

# Those that presets have.
_ALGORITHMS: dict[str, type[AlgoConfig]] = {"adaround": AdaRoundConfig, "adaquant": AdaQuantConfig}


@dataclass
class QuantizationConfig(Documented):
    """Calibration, types and switches; everything else stands in ``extra_options``.

    ``include_cle`` is off unless it is asked for, as Quark's documentation says and its release 0.13 does not.
    """

    calibrate_method: Any = CalibrationMethod.MinMax
    quant_format: Any = QuantFormat.QDQ
    activation_type: Any = QuantType.QInt8
    weight_type: Any = QuantType.QInt8
    input_nodes: list[str] = field(default_factory=list)
    output_nodes: list[str] = field(default_factory=list)
    op_types_to_quantize: list[str] = field(default_factory=list)
    nodes_to_quantize: list[str] = field(default_factory=list)
    extra_op_types_to_quantize: list[str] = field(default_factory=list)
    nodes_to_exclude: list[str] = field(default_factory=list)
    subgraphs_to_exclude: list[Any] = field(default_factory=list)
    specific_tensor_precision: bool = False
    execution_providers: list[str] = field(default_factory=lambda: ["CPUExecutionProvider"])
    per_channel: bool = False
    reduce_range: bool = False
    optimize_model: bool = True
    use_dynamic_quant: bool = False
    use_external_data_format: bool = False
    convert_fp16_to_fp32: bool = False
    convert_nchw_to_nhwc: bool = False
    include_sq: bool = False
    include_rotation: bool = False
    include_cle: bool = False
    include_auto_mp: bool = False
    include_fast_ft: bool = False
    enable_npu_cnn: bool = False
    enable_npu_transformer: bool = False
    debug_mode: bool = False
    crypto_mode: bool = False
    print_summary: bool = True
    ignore_warnings: bool = True
    log_severity_level: Any = None
    extra_options: dict[str, Any] = field(default_factory=dict)

    def document(self, functions: Functions) -> dict[str, Any]:
        """``include_cle``, and the fields that differ from their defaults."""
        plainest = QuantizationConfig()
        given = {key: value for key, value in vars(self).items() if value != getattr(plainest, key)}
        return {
            key: plain(value, functions, at=key) for key, value in {"include_cle": self.include_cle, **given}.items()
        }


@dataclass
class Config(Documented):
    """What ModelQuantizer takes: a QuantizationConfig, or the name of a preset."""

    global_quant_config: QuantizationConfig | str | None = None

    def document(self, functions: Functions) -> dict[str, Any]:
        """As ``global_quant_config``."""
        given = QuantizationConfig() if self.global_quant_config is None else self.global_quant_config
        return {"global_quant_config": plain(given, functions)}


class QConfig(Documented):
    """Types as specs of tensors, algorithms as a list; ``options`` are the extra options.

    Args:
        global_config: of all layers.
        specific_layer_config: {layer config: names of nodes, patterns, sub-graphs}.
        layer_type_config: {layer config: operator types}; None in place of a layer config leaves them in float.
        exclude: names of nodes, patterns (``^`` first, ``.*`` within), pairs (first nodes, last nodes).
        algo_config: algorithms.
        use_external_data_format: has no effect, the size of the model decides.
        extra_options: as ``options``.
    """

    def __init__(
        self,
        global_config: QLayerConfig | str | None = None,
        specific_layer_config: Mapping[QLayerConfig, Sequence[Any]] | None = None,
        layer_type_config: Mapping[QLayerConfig | None, Sequence[str]] | None = None,
        exclude: Sequence[Any] | None = None,
        algo_config: Sequence[AlgoConfig] | None = None,
        use_external_data_format: bool = False,
        extra_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.global_config = global_config
        self.specific_layer_config = dict(specific_layer_config or {})
        self.layer_type_config = dict(layer_type_config or {})
        self.exclude = list(exclude or [])
        self.algo_config = list(algo_config or [])
        self.use_external_data_format = use_external_data_format
        self.extra_options = {**(extra_options or {}), **options}

    def document(self, functions: Functions) -> dict[str, Any]:
        """All fields, layer configs paired with what they are for."""
        return {
            "global_config": plain(self.global_config, functions),
            "specific_layer_config": _pairs(self.specific_layer_config, functions),
            "layer_type_config": _pairs(self.layer_type_config, functions),
            "exclude": plain(self.exclude, functions, at="exclude"),
            "algo_config": plain(self.algo_config, functions, at="algo_config"),
            "use_external_data_format": self.use_external_data_format,
            "extra_options": plain(self.extra_options, functions, at="extra_options"),
        }

    @staticmethod
    def get_default_config(name: str) -> QConfig:
        """The preset of this name: XINT8, A8W8_ADAROUND, BF16 ...

        Raises:
            InvalidConfigError: there is none.
        """
        fields = preset_fields(name, suffix="_QCONFIG")
        layer = {key: QTensorConfig(**tensor) for key, tensor in fields["global_config"].items()}
        algorithms = [_ALGORITHMS[entry.pop("name")](**entry) for entry in fields["algo_config"]]
        return QConfig(QLayerConfig(**layer), algo_config=algorithms, extra_options=fields["extra_options"])


def _pairs(layers: Mapping[Any, Sequence[Any]], functions: Functions) -> list[list[Any]]:
    return [[plain(layer, functions), plain(list(names), functions)] for layer, names in layers.items()]


__all__ = ["Config", "QConfig", "QuantizationConfig"]
