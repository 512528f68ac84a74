"""Quark's options for graph preparation."""

from __future__ import annotations

import re
from typing import Any

from service.quark.draft import BAD_VALUE, Given, QuarkDraft
from service.quark.equalization import CLE
from service.quark.option import B, D, I, L, Option, S, honoured, no_effect, refuse, refused, set_to, switched

PASSES_OFF = (
    *("fold_batch_norm", "fuse_gelu", "fuse_layer_norm", "fuse_instance_norm", "fuse_l2_norm"),
    *("fuse_hard_swish", "fuse_hard_sigmoid", "sink_conv1d_squeeze"),
)
_SWITCHES = "switch the passes of 'preparation' instead"
_NPU_DEFAULT = (
    "on by default for the NPU targets, the only ones that benefit from it; in Quark also for its extended Q/DQ"
)
_NPU_PASSES = {
    "ConvertBNToConv": "batch_norm_to_conv",
    "ConvertReduceMeanToGlobalAvgPool": "reduce_mean_to_global_average_pool",
    "SplitLargeKernelPool": "split_large_pooling",
    "ConvertSplitToSlice": "split_to_slice",
}
_SHAPE = re.compile(r"\s*([^:;]+?)\s*:\s*\[\s*(\d+(?:\s*,\s*\d+)*)\s*\]\s*")


_skip = switched({f"preparation/{name}": False for name in PASSES_OFF})
# Quark folds BatchNormalization if it optimizes, unless FoldBatchNorm says otherwise.
_optimize = switched({"preparation/fold_batch_norm": False}, on=False)


def _clip6(draft: QuarkDraft, given: Given) -> None:
    if not given.value or CLE in draft.steps:
        set_to("preparation/clip6_to_relu")(draft, given)
        if given.value:
            draft.note(
                given.pointer, "ReplaceClip6Relu changes the float model; equalization works equally well without it"
            )
    else:
        draft.note(given.pointer, "ReplaceClip6Relu has no effect without include_cle, as in Quark")


def _copy_shared(draft: QuarkDraft, given: Given) -> None:
    if given.value:
        refuse(draft, given, "initializers are copied for all operator types or for none; give [] for all")
    else:
        draft.put("preparation/unshare_initializers", True, given)


def _fix_shapes(draft: QuarkDraft, given: Given) -> None:
    parts = [part for part in given.value.split(";") if part.strip()]
    matches = [_SHAPE.fullmatch(part) for part in parts]
    if not parts or not all(matches):
        example = "input:[1,3,224,224];other:[1,10]"
        draft.problem(given.pointer, f"FixShapes must have the form {example!r}, not {given.value!r}", BAD_VALUE)
        return
    shapes: dict[str, Any] = {m[1]: [int(dim) for dim in m[2].split(",")] for m in matches if m}
    draft.put("preparation/fixed_shapes", shapes, given)


GRAPH_OPTIONS: tuple[Option, ...] = (
    refused("ShapeShifterYaml", S, None, f"the order of passes is fixed; {_SWITCHES}"),
    refused("PreprocessYAML", S, None, f"the order of passes is fixed; {_SWITCHES}"),
    honoured("OptimizeModel", B, True, "preparation.fold_batch_norm", _optimize, "constants are always folded"),
    honoured("SkipPreprocess", B, False, "preparation.*", _skip, "all optional passes are off"),
    no_effect("SimplifyModel", B, True, "constants are always folded and dead nodes removed"),
    refused(
        "SimplifyModelOptions",
        D,
        {},
        "these are options of onnxslim, which is not used; see 'preparation'",
        harmless=(),
    ),
    no_effect("ConvertFP16ToFP32", B, False, "float16 models are always computed in float32"),
    honoured("ConvertNCHWToNHWC", B, False, "preparation.nhwc_input"),
    honoured("ConvertOpsetVersion", I, None, "preparation.opset"),
    *(honoured(name, B, None, f"preparation.{ours}", why=_NPU_DEFAULT) for name, ours in _NPU_PASSES.items()),
    refused(
        "ConvertClipToRelu",
        B,
        False,
        "it removes the upper limit of every Clip; 'preparation.clip6_to_relu' does this for Clip(0, 6) only",
    ),
    honoured("FuseInstanceNorm", B, True, "preparation.fuse_instance_norm"),
    honoured("FuseL2Norm", B, True, "preparation.fuse_l2_norm"),
    honoured("FuseGelu", B, True, "preparation.fuse_gelu"),
    honoured("FuseLayerNorm", B, True, "preparation.fuse_layer_norm"),
    honoured("FoldBatchNorm", B, None, "preparation.fold_batch_norm"),
    no_effect(
        "FoldRelu",
        B,
        False,
        "it only removes activation functions that have no effect within the tensor's range; onnxruntime "
        "does this when it loads the model",
    ),
    honoured("ReplaceClip6Relu", B, False, "preparation.clip6_to_relu", _clip6, "together with include_cle"),
    no_effect("RemoveInputInit", B, True, "initializers are never inputs of the model"),
    honoured("CopySharedInit", L, None, "preparation.unshare_initializers", _copy_shared, "[] (all) only"),
    no_effect(
        "CopyBiasInit",
        L,
        ["Conv", "ConvTranspose", "Gemm"],
        "a bias that several nodes use is always quantized for each of them",
    ),
    honoured("FixShapes", S, None, "preparation.fixed_shapes", _fix_shapes),
    no_effect("FillAllValueInfo", B, False, "shapes of intermediate tensors do not affect the model's results"),
)
