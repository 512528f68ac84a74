"""Quark's NPU options: the target, and its rules that can be switched individually."""

from __future__ import annotations

from service.quark.draft import Given, QuarkDraft
from service.quark.option import B, I, Option, done, honoured, no_effect, refuse, refused

NPU_CNN = "amd_npu_cnn"
_SIMULATION = {
    "ConvertLeakyReluToDPUVersion": "dpu_leaky_relu",
    "ConvertSigmoidToHardSigmoid": "sigmoid_to_hard_sigmoid",
    "ConvertHardSigmoidToDPUVersion": "dpu_hard_sigmoid",
    "ConvertAvgPoolToDPUVersion": "dpu_average_pool",
    "ConvertReduceMeanToDPUVersion": "dpu_reduce_mean",
}
_LIMITS = {
    "AdjustShiftCut": "shift_cut",
    "AdjustShiftBias": "shift_bias",
    "AdjustShiftRead": "shift_read",
    "AdjustShiftWrite": "shift_write",
    "AdjustShiftSwish": "shift_swish",
    "AdjustHardSigmoid": "hard_sigmoid_positions",
    "AlignConcat": "align_concat",
    "AlignPool": "align_pool",
    "AlignPad": "align_pad",
    "AlignSlice": "align_slice",
}
_ELSEWHERE = "only the NPU target has this rule"
_APPROXIMATION = "this operator is never replaced by the NPU's approximation"


def _rules(name: str, ours: tuple[str, ...], where: str) -> Option:
    """Rules of the NPU target, on by default there; in Quark's extended quantizer they are off by default."""

    def apply(draft: QuarkDraft, given: Given) -> None:
        if draft.target == NPU_CNN:
            for rule in ours if not given.value else ():
                draft.set(f"target_options/{rule}", False, given.pointer)
            draft.honour(given.pointer)
        elif not given.value:
            draft.honour(given.pointer)
        elif draft.extended:
            refuse(draft, given, _ELSEWHERE)
        else:
            draft.note(
                given.pointer, f"{name} has no effect: it applies to NPUs and the extended Q/DQ only, as in Quark"
            )

    why = (
        f"{_ELSEWHERE}, on by default there; for other targets it is refused with the extended Q/DQ and "
        "otherwise has no effect"
    )
    return Option(name, B, None, "honoured", where, why, apply)


def _rule(name: str, ours: str) -> Option:
    return _rules(name, (ours,), f"target_options.{ours}")


def _eltwise(draft: QuarkDraft, given: Given) -> None:
    if given.value and draft.extended:
        refuse(draft, given, "the target determines how constant operands of elementwise nodes are represented")
    elif given.value:
        draft.note(given.pointer, f"{given.name} has no effect: it applies to the extended Q/DQ only, as in Quark")
    else:
        draft.honour(given.pointer)


_MOVED = "nodes that only move values always use the same quantization parameters for input and output"

NPU_OPTIONS: tuple[Option, ...] = (
    honoured(
        "EnableNPUCnn", B, None, "target", done, "on automatically if all scales of the QConfig are powers of two"
    ),
    _rules("SimulateDPU", tuple(_SIMULATION.values()), "target_options"),
    *(_rule(name, ours) for name, ours in _SIMULATION.items()),
    refused("ConvertSoftmaxToDPUVersion", B, False, _APPROXIMATION),
    refused("ConvertInstanceNormToDPUVersion", B, False, _APPROXIMATION),
    refused("ConvertClipToDPUVersion", B, False, _APPROXIMATION),
    _rules("NPULimitationCheck", tuple(_LIMITS.values()), "target_options"),
    no_effect("MaxLoopNum", I, 5, "positions are aligned until nothing changes"),
    *(_rule(name, ours) for name, ours in _LIMITS.items()),
    no_effect("AlignTranspose", B, False, _MOVED),
    no_effect("AlignReshape", B, False, _MOVED),
    Option(
        "AlignEltwiseQuantType",
        B,
        False,
        "refused",
        "",
        "the target determines how constant operands of elementwise nodes are represented",
        _eltwise,
    ),
)
