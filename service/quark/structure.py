"""Quark's options of selection and of the form of Q/DQ pairs."""

from __future__ import annotations

from typing import Any

from service.contracts.base import below
from service.quark.draft import BAD_VALUE, Given, QuarkDraft
from service.quark.option import B, D, L, Option, honoured, no_effect, refuse, refused

REGION = ("InputNodes", "OutputNodes")
_BY_TARGET = "which nodes are quantized is decided by the target; the report names every node left in float"
_ONE_PAIR = "every tensor has one Q/DQ pair, or none between a layer and the activation function fused with it"
_OVERRIDES = "'overrides' choose types by node, activations and weights apart"


def names_of(draft: QuarkDraft, given: Given) -> list[str]:
    """The names in a list; a problem for each entry that is none."""
    for k, entry in enumerate(given.value):
        if not isinstance(entry, str) or not entry:
            draft.problem(below(given.pointer, k), f"{given.name} must list names", BAD_VALUE)
    return [entry for entry in given.value if isinstance(entry, str) and entry]


def _include(kind: str) -> Any:
    def apply(draft: QuarkDraft, given: Given) -> None:
        selectors = [{kind: name} for name in names_of(draft, given)]
        if selectors:
            _only(draft, given, selectors)
        draft.honour(given.pointer)

    return apply


def _region(draft: QuarkDraft, given: Given) -> None:
    names = {name: names_of(draft, draft.given[name]) if name in draft.given else [] for name in REGION}
    ends = names["InputNodes"], names["OutputNodes"]
    if given.value and not all(ends):
        refuse(draft, given, "a region needs both InputNodes and OutputNodes")
    elif given.value and given.name == "InputNodes":
        _only(draft, given, [{"from_nodes": ends[0], "to_nodes": ends[1]}])
    draft.honour(given.pointer)


def _only(draft: QuarkDraft, given: Given, selectors: list[dict[str, Any]]) -> None:
    """Sets include; Quark quantizes what all of its lists name, include means what any of them names."""
    if draft.get("include"):
        other = draft.origins["include"]
        refuse(draft, given, f"{other} selects already; only one way to select can be translated")
    else:
        draft.set("include", selectors, given.pointer)


def _constant_matmul(draft: QuarkDraft, given: Given) -> None:
    if draft.target == "amd_npu_transformer":
        if not given.value:
            draft.set("target_options/matmul_constant_b_only", False, given.pointer)
        draft.honour(given.pointer)
    elif given.value != (draft.config.get("mode") == "dynamic"):
        taken = "any operands" if given.value else "a constant operand alone"
        refuse(draft, given, f"MatMul of {taken} is quantized; exclude nodes by name to leave them in float")
    else:
        draft.honour(given.pointer)


def _weights_only(draft: QuarkDraft, given: Given) -> None:
    if given.value:
        draft.set("mode", "weights_only", given.pointer)
    draft.honour(given.pointer)


def _subgraphs(draft: QuarkDraft, given: Given) -> None:
    if given.value:
        draft.set("subgraphs", "weights", given.pointer)
    draft.honour(given.pointer)


def _overrides(draft: QuarkDraft, given: Given) -> None:
    """Only ranges can be said of a tensor: {name: [{"rmin": a, "rmax": b}]}."""
    for tensor, entries in given.value.items():
        at = below(given.pointer, tensor)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            draft.problem(at, "must be a list of objects", BAD_VALUE)
        elif len(entries) != 1:
            draft.problem(
                at, f"{len(entries)} entries for one tensor cannot be translated: a range holds for all of it"
            )
        else:
            _range(draft, tensor, entries[0], below(at, 0))
    draft.honour(given.pointer)


def _range(draft: QuarkDraft, tensor: str, entry: dict[str, Any], at: str) -> None:
    for key in entry:
        if key not in ("rmin", "rmax"):
            draft.problem(below(at, key), f"{key} of a single tensor cannot be translated: {_OVERRIDES}")
    if set(entry) != {"rmin", "rmax"}:
        if not set(entry) - {"rmin", "rmax"}:
            draft.problem(at, "rmin and rmax are needed, both", BAD_VALUE)
        return
    draft.config.setdefault("tensor_ranges", {})[tensor] = {"minimum": entry["rmin"], "maximum": entry["rmax"]}
    for ours, theirs in (("minimum", "rmin"), ("maximum", "rmax")):
        draft.origins[f"tensor_ranges/{tensor}/{ours}"] = below(at, theirs)


SELECTION_OPTIONS: tuple[Option, ...] = (
    honoured("OpTypesToQuantize", L, [], "include", _include("op_type")),
    honoured("NodesToQuantize", L, [], "include", _include("node")),
    refused("ExtraOpTypesToQuantize", L, [], _BY_TARGET),
    honoured("InputNodes", L, [], "include", _region, "together with OutputNodes"),
    honoured("OutputNodes", L, [], "include", _region, "together with InputNodes"),
    no_effect("QuantizeAllOpTypes", B, False, _BY_TARGET),
    honoured("WeightsOnly", B, False, "mode", _weights_only),
    honoured("EnableSubgraph", B, False, "subgraphs", _subgraphs, "weights alone; activations inside stay in float"),
    honoured(
        "MatMulConstBOnly",
        B,
        None,
        "target_options.matmul_constant_b_only",
        _constant_matmul,
        "for amd_npu_transformer; elsewhere where it says what the mode does anyway",
    ),
    no_effect("ForceQuantizeNoInputCheck", B, False, _BY_TARGET),
    refused(
        "OpTypesToExcludeOutputQuantization", L, [], "a quantized node's output cannot be left in float by a switch"
    ),
    refused("NodesToExcludeOutputQuantization", L, [], "a quantized node's output cannot be left in float by a switch"),
)

STRUCTURE_OPTIONS: tuple[Option, ...] = (
    refused(
        "AddQDQPairToWeight",
        B,
        None,
        "weights are stored quantized, never in float behind a Q/DQ pair",
        harmless=(False,),
    ),
    refused("DedicatedQDQPair", B, False, _ONE_PAIR),
    refused("DedicateDQNode", B, False, _ONE_PAIR),
    refused("EnableDualQuantNodePairs", B, False, _ONE_PAIR),
    refused("QDQOpTypePerChannelSupportToAxis", D, {}, "the axis of per-channel weights is that of the outputs"),
    refused("RemoveQDQConvClip", B, True, _ONE_PAIR),
    refused("RemoveQDQConvRelu", B, True, _ONE_PAIR),
    refused("RemoveQDQConvLeakyRelu", B, True, _ONE_PAIR),
    refused("RemoveQDQConvPRelu", B, True, _ONE_PAIR),
    refused("RemoveQDQConvGelu", B, False, _ONE_PAIR),
    refused("RemoveQDQMulAdd", B, False, _ONE_PAIR),
    refused("RemoveQDQInstanceNorm", B, False, _ONE_PAIR),
    refused("RemoveFusedQDQ", B, False, _ONE_PAIR),
    refused("RemoveQDQBetweenOps", L, None, _ONE_PAIR, harmless=([],)),
    no_effect("UseQDQContribOps", B, False, "the operator set of the model decides which Q/DQ operators there are"),
    no_effect("UseQDQVitisCustomOps", B, True, "custom operators are never written"),
    honoured("TensorQuantOverrides", D, {}, "tensor_ranges", _overrides, f"rmin and rmax only; {_OVERRIDES}"),
    refused("MixedPrecisionTensor", D, {}, _OVERRIDES),
    refused("SpecificTensorPrecision", B, False, _OVERRIDES),
)
