"""All known Quark keys: extra options by group, and the fields of QuantizationConfig."""

from __future__ import annotations

from service.quark.algorithms import ALGORITHM_OPTIONS, RUN_OPTIONS, pending
from service.quark.calibration import CALIBRATION_OPTIONS
from service.quark.draft import Given, QuarkDraft
from service.quark.equalization import CLE, SMOOTH_QUANT, switch
from service.quark.finetune import include_fast_ft
from service.quark.graph import GRAPH_OPTIONS
from service.quark.mixed import include_auto_mp
from service.quark.npu import NPU_OPTIONS
from service.quark.option import B, L, Option, S, done, honoured, no_effect, refused
from service.quark.structure import SELECTION_OPTIONS, STRUCTURE_OPTIONS
from service.quark.values import NUMERIC_OPTIONS

# In the order in which they are applied: later ones rely on what earlier ones set.
OPTION_GROUPS: dict[str, tuple[Option, ...]] = {
    "NPU": NPU_OPTIONS,
    "Calibration": CALIBRATION_OPTIONS,
    "Numbers": NUMERIC_OPTIONS,
    "Graph and preprocessing": GRAPH_OPTIONS,
    "Selection": SELECTION_OPTIONS,
    "Q/DQ structure": STRUCTURE_OPTIONS,
    "Algorithms": ALGORITHM_OPTIONS,
    "Run control": RUN_OPTIONS,
}
OPTIONS: dict[str, Option] = {option.name: option for group in OPTION_GROUPS.values() for option in group}

# Misspelt in examples of Quark's own, which takes no notice of it; here it means what it says.
OPTION_ALIASES: dict[str, str] = {"WeightsSymmetric": "WeightSymmetric"}

# Fields of QuantizationConfig that are an extra option by another name.
FIELD_OPTIONS: dict[str, str] = {
    "optimize_model": "OptimizeModel",
    "convert_fp16_to_fp32": "ConvertFP16ToFP32",
    "convert_nchw_to_nhwc": "ConvertNCHWToNHWC",
    "op_types_to_quantize": "OpTypesToQuantize",
    "nodes_to_quantize": "NodesToQuantize",
    "extra_op_types_to_quantize": "ExtraOpTypesToQuantize",
    "input_nodes": "InputNodes",
    "output_nodes": "OutputNodes",
    "execution_providers": "ExecutionProviders",
    "specific_tensor_precision": "SpecificTensorPrecision",
    "enable_npu_cnn": "EnableNPUCnn",
    "enable_ipu_cnn": "EnableNPUCnn",
    "enable_dpu": "EnableNPUCnn",
    "debug_mode": "DebugMode",
    "crypto_mode": "CryptoMode",
    "print_summary": "PrintSummary",
    "ignore_warnings": "IgnoreWarnings",
}
# Other fields by an older name.
FIELD_ALIASES: dict[str, str] = {"enable_ipu_transformer": "enable_npu_transformer"}


def _per_channel(draft: QuarkDraft, given: Given) -> None:
    draft.put("weight/granularity", "per_channel" if given.value else "per_tensor", given)


def _external_data(draft: QuarkDraft, given: Given) -> None:
    draft.honour(given.pointer)
    if given.value:
        draft.note(
            given.pointer, "use_external_data_format has no effect here: it is determined by the size of the model"
        )


FIELDS: dict[str, Option] = {
    option.name: option
    for option in (
        honoured("calibrate_method", S, "CalibrationMethod.MinMax", "activation.calibration, *.scale", done),
        honoured("quant_format", S, "QuantFormat.QDQ", "format", done, "extended formats are treated like plain ones"),
        honoured("activation_type", S, "QuantType.QInt8", "activation.dtype", done),
        honoured("weight_type", S, "QuantType.QInt8", "weight.dtype", done),
        honoured("nodes_to_exclude", L, [], "exclude", done, "names, and patterns that start with ^"),
        honoured("subgraphs_to_exclude", L, [], "exclude", done),
        honoured("per_channel", B, False, "weight.granularity", _per_channel),
        honoured("reduce_range", B, False, "weight.reduce_range"),
        honoured("use_dynamic_quant", B, False, "mode", done),
        Option(
            "use_external_data_format",
            B,
            False,
            "no effect here",
            "",
            "determined by the size of the model",
            _external_data,
        ),
        honoured(
            "include_cle",
            B,
            True,
            "algorithms.cross_layer_equalization",
            switch(CLE),
            "default false, as in QConfig; in Quark 0.13 true",
        ),
        honoured("include_sq", B, False, "algorithms.smooth_quant", switch(SMOOTH_QUANT)),
        refused("include_rotation", B, False, pending("rotation")),
        honoured(
            "include_auto_mp",
            B,
            False,
            "algorithms.mixed_precision",
            include_auto_mp,
            "with the settings of AutoMixprecision",
        ),
        honoured(
            "include_fast_ft",
            B,
            False,
            "algorithms.adaround, algorithms.adaquant",
            include_fast_ft,
            "the algorithm of FastFinetune.OptimAlgorithm",
        ),
        honoured("enable_npu_transformer", B, False, "target", done),
        no_effect("log_severity_level", S, None, "deprecated in Quark too"),
    )
}


def option_of(name: str) -> Option | None:
    """The field or option of this canonical name."""
    return FIELDS.get(name) or OPTIONS.get(name)
