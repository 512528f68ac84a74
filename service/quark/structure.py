"""Quark's options for node selection and for the structure of Q/DQ pairs."""

from __future__ import annotations

from typing import Any

from service.contracts.base import below
from service.contracts.selectors import PatternError, compiled
from service.quark.draft import BAD_VALUE, Given, QuarkDraft
from service.quark.option import B, D, L, Option, honoured, no_effect, refuse, refused, switched

REGION = ("InputNodes", "OutputNodes")
_BY_TARGET = "the target determines which nodes are quantized; the report names every node left in float"
_ONE_PAIR = "every tensor has one Q/DQ pair, or none between a layer and the activation function fused with it"
_INSIDE = "weights only; activations in subgraphs stay in float"
_OVERRIDES = "use 'overrides' to set types by node, separately for activations and weights"


def names_of(draft: QuarkDraft, given: Given) -> list[str]:
    """The names in a list; a problem for each entry that is none."""
    for k, entry in enumerate(given.value):
        if not isinstance(entry, str) or not entry:
            draft.problem(below(given.pointer, k), f"{given.name} must be a list of names", BAD_VALUE)
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
        refuse(draft, given, "a region requires both InputNodes and OutputNodes")
    elif given.value and given.name == "InputNodes":
        _only(draft, given, [{"from_nodes": ends[0], "to_nodes": ends[1]}])
    draft.honour(given.pointer)


def _only(draft: QuarkDraft, given: Given, selectors: list[dict[str, Any]]) -> None:
    """Sets include; Quark quantizes what all of its lists name, include means what any of them names."""
    if draft.get("include"):
        other = draft.origins["include"]
        refuse(draft, given, f"nodes are already selected by {other}; only one kind of selection can be translated")
    else:
        draft.set("include", selectors, given.pointer)


def _constant_matmul(draft: QuarkDraft, given: Given) -> None:
    if draft.target == "amd_npu_transformer":
        if not given.value:
            draft.set("target_options/matmul_constant_b_only", False, given.pointer)
        draft.honour(given.pointer)
    elif given.value != (draft.config.get("mode") == "dynamic"):
        taken = "any operands" if given.value else "constant operands only"
        refuse(draft, given, f"MatMul with {taken} is quantized; exclude nodes by name to leave them in float")
    else:
        draft.honour(given.pointer)


def _overrides(draft: QuarkDraft, given: Given) -> None:
    """Only ranges can be said of a tensor: {name: [{"rmin": a, "rmax": b}]}."""
    for tensor, entries in given.value.items():
        at = below(given.pointer, tensor)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            draft.problem(at, "must be a list of objects", BAD_VALUE)
        elif len(entries) != 1:
            draft.problem(
                at, f"{len(entries)} entries for one tensor cannot be translated: a tensor has a single range"
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
            draft.problem(at, "both rmin and rmax are required", BAD_VALUE)
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
    honoured("WeightsOnly", B, False, "mode", switched({"mode": "weights_only"})),
    honoured("EnableSubgraph", B, False, "subgraphs", switched({"subgraphs": "weights"}), _INSIDE),
    honoured(
        "MatMulConstBOnly",
        B,
        None,
        "target_options.matmul_constant_b_only",
        _constant_matmul,
        "for amd_npu_transformer; for other targets, only if it matches the default of the mode",
    ),
    no_effect("ForceQuantizeNoInputCheck", B, False, _BY_TARGET),
    refused("OpTypesToExcludeOutputQuantization", L, [], "the output of a quantized node cannot be left in float"),
    refused("NodesToExcludeOutputQuantization", L, [], "the output of a quantized node cannot be left in float"),
)
STRUCTURE_OPTIONS: tuple[Option, ...] = (
    refused(
        "AddQDQPairToWeight",
        B,
        None,
        "weights are stored quantized, never in float before a Q/DQ pair",
        harmless=(False,),
    ),
    refused("DedicatedQDQPair", B, False, _ONE_PAIR),
    refused("DedicateDQNode", B, False, _ONE_PAIR),
    refused("EnableDualQuantNodePairs", B, False, _ONE_PAIR),
    refused("QDQOpTypePerChannelSupportToAxis", D, {}, "the axis of per-channel weights is always the output axis"),
    refused("RemoveQDQConvClip", B, True, _ONE_PAIR),
    refused("RemoveQDQConvRelu", B, True, _ONE_PAIR),
    refused("RemoveQDQConvLeakyRelu", B, True, _ONE_PAIR),
    refused("RemoveQDQConvPRelu", B, True, _ONE_PAIR),
    refused("RemoveQDQConvGelu", B, False, _ONE_PAIR),
    refused("RemoveQDQMulAdd", B, False, _ONE_PAIR),
    refused("RemoveQDQInstanceNorm", B, False, _ONE_PAIR),
    refused("RemoveFusedQDQ", B, False, _ONE_PAIR),
    refused("RemoveQDQBetweenOps", L, None, _ONE_PAIR, harmless=([],)),
    no_effect("UseQDQContribOps", B, False, "the model's opset determines which Q/DQ operators are available"),
    no_effect("UseQDQVitisCustomOps", B, True, "custom operators are never written"),
    honoured("TensorQuantOverrides", D, {}, "tensor_ranges", _overrides, f"rmin and rmax only; {_OVERRIDES}"),
    refused("MixedPrecisionTensor", D, {}, _OVERRIDES),
    refused("SpecificTensorPrecision", B, False, _OVERRIDES),
)


# Names, patterns and sub-graphs by which Quark excludes nodes or singles them out.


def exclude(draft: QuarkDraft, entries: Any, at: str, *, subgraphs: bool = False) -> None:
    """Add the selectors of a list of names, patterns and sub-graphs to ``exclude``.

    ``subgraphs`` is True for a list of sub-graphs alone, in which a name has no place.
    """
    if not isinstance(entries, list):
        draft.problem(at, "must be a list", BAD_VALUE)
        return
    for k, entry in enumerate(entries):
        if subgraphs and isinstance(entry, str):
            draft.problem(below(at, k), "must be a subgraph: [[first nodes], [last nodes]]", BAD_VALUE)
            continue
        selector = selector_of(draft, entry, below(at, k))
        if selector is not None:
            leave_out(draft, selector, below(at, k))


def leave_out(draft: QuarkDraft, selector: dict[str, Any], at: str) -> None:
    """Add one selector to ``exclude``."""
    chosen = draft.config.setdefault("exclude", [])
    if selector not in chosen:
        draft.origins[f"exclude/{len(chosen)}"] = at
        chosen.append(selector)


def selector_of(draft: QuarkDraft, entry: Any, at: str) -> dict[str, Any] | None:
    """Our selector for a name, a pattern (it begins with ``^``) or ``[[first nodes], [last nodes]]``."""
    if isinstance(entry, str) and entry.startswith("^"):
        return _pattern(draft, entry, at)
    if isinstance(entry, str) and entry:
        return {"node": entry}
    if isinstance(entry, list) and len(entry) == 1 and isinstance(entry[0], list):
        return selector_of(draft, entry[0], at)  # a list around the tuple, as Quark's type hints have it
    if isinstance(entry, list) and len(entry) == 2 and all(_names(end) for end in entry):
        first, last = ([end] if isinstance(end, str) else end for end in entry)
        return {"from_nodes": first, "to_nodes": last}
    draft.problem(at, "must be a name, a pattern such as '^/layer1/.*', or [[first nodes], [last nodes]]", BAD_VALUE)
    return None


def _names(end: Any) -> bool:
    if isinstance(end, str):
        return bool(end)
    return isinstance(end, list) and bool(end) and all(isinstance(name, str) and name for name in end)


def _pattern(draft: QuarkDraft, pattern: str, at: str) -> dict[str, Any] | None:
    """Quark searches for the pattern; our regex has to match the whole name."""
    try:
        compiled(pattern)
    except PatternError as error:
        draft.problem(at, f"not a regular expression: {error}", BAD_VALUE)
        return None
    if ".*" not in pattern:
        draft.problem(at, "a pattern must contain '.*'; otherwise it is ignored (in Quark too)", BAD_VALUE)
        return None
    return {"regex": f".*(?:{pattern}).*" if "|" in pattern else f"(?:{pattern}).*"}
