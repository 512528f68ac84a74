"""Config documents of AMD Quark: translates ``{"format": "quark", "config": ...}`` to a Quantmill config.

``config`` is a QuantizationConfig (alone or as ``global_quant_config``), a QConfig (it has ``global_config``), or the
name of a preset, as JSON: enumerations by their names, such as ``"CalibrationMethod.MinMax"``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.contracts.base import below
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.data_checks import RANDOM_DATA_KEY
from service.contracts.errors import (
    CalibrationMissingError,
    FieldProblem,
    InvalidConfigError,
    QuantmillError,
    problem_summary,
    relocated,
)
from service.contracts.presets import Preset, find_preset, missing_preset
from service.quark.draft import BAD_VALUE, UNKNOWN, Note, QuarkDraft, QuarkStep
from service.quark.finish import BIAS_KEYS, finish
from service.quark.legacy import apply_all, read_fields, translate_excludes, translate_legacy
from service.quark.option import unknown
from service.quark.qconfig import translate_qconfig
from service.quark.registry import FIELD_OPTIONS, FIELDS

ENVELOPE_FORMAT = "quark"
# What a translated config builds on where it names no preset: everything that counts is said explicitly.
BASE_PRESET = "plain"
# Our own keys that may stand beside a Quark config, which has no words for them.
PASSED = ("evaluation", "seed")
_LEGACY, _QCONFIG = "global_quant_config", "global_config"
_LAYER_CONFIGS = ("layer_type_config", "specific_layer_config")
NO_ENVELOPE = "quark-no-envelope"
PAGE = "docs/quark.md, also served at /docs/quark.md"
# Names of Quark's classes, under which some write the whole config.
_CLASSES = ("QuantizationConfig", "QConfig", "Config")
# Keys of the whole of a Quark config, none of which is one of ours.
_QUARKS_ALONE = frozenset(
    {_LEGACY, _QCONFIG, *_CLASSES, *FIELDS, *FIELD_OPTIONS, "extra_options", "algo_config", *_LAYER_CONFIGS}
) - frozenset(QuantizationConfig.model_fields)
_OURS_ALONE = ("activation", "weight", "bias", "target", "mode", "algorithms", "evaluation", "preparation")
# Fields from which a preset is made: to change one, the whole config has to be written out.
_MADE_OF = (
    "calibrate_method",
    "quant_format",
    "activation_type",
    "weight_type",
    "use_dynamic_quant",
    "EnableNPUCnn",
    "enable_npu_transformer",
)


@dataclass(frozen=True)
class Translation:
    """What became of a Quark config."""

    config: dict[str, Any]  # ours, as JSON, not yet validated
    notes: tuple[Note, ...]  # what holds otherwise than in Quark
    honoured: tuple[str, ...]  # pointers of the keys that are done as they say
    origins: dict[str, str]  # path within ``config`` -> pointer of the key that it comes from
    root: str  # pointer of the Quark config

    def relocated(self, problems: tuple[FieldProblem, ...], pointer: str) -> tuple[FieldProblem, ...]:
        """Problems with our config, which was validated as of ``pointer``, as problems with the Quark config."""
        return relocated(problems, lambda place: self.origin(place, pointer))

    def relocate(self, error: QuantmillError, pointer: str) -> None:
        """Have an error that a later check found with our config, as of ``pointer``, point into the Quark config."""
        error.relocate(lambda place: self.origin(place, pointer))
        use_quark_words(error)

    def origin(self, place: str, pointer: str) -> str:
        """Where in the Quark config stands what ``place`` points to in our config, which itself is at ``pointer``."""
        if place != pointer and not place.startswith(pointer + "/"):
            return place
        parts = [part.replace("~1", "/").replace("~0", "~") for part in place[len(pointer) :].split("/")[1:]]
        for end in range(len(parts), 0, -1):
            origin = self.origins.get("/".join(parts[:end]))
            if origin is not None:
                return origin
        return place if parts[:1] and parts[0] in PASSED else self.root


def use_quark_words(error: QuantmillError) -> None:
    """Have the hint of missing data name the option of a Quark config."""
    if isinstance(error, CalibrationMissingError) and error.hint is not None:
        error.hint = error.hint.replace(RANDOM_DATA_KEY, "the extra option UseRandomData")


def translate(data: Any, pointer: str = "") -> Translation:
    """Translate a Quark config.

    Args:
        data: the config as decoded JSON.
        pointer: where it stands.

    Raises:
        InvalidConfigError: with one problem per key that is unknown, malformed or cannot be translated.
    """
    draft = QuarkDraft(pointer)
    draft.config["preset"] = BASE_PRESET
    name = _preset_name(data)
    if name is not None:
        _translate_preset(draft, *name, data)
    elif not isinstance(data, dict):
        draft.problem(pointer, "must be an object, or the name of a preset", BAD_VALUE)
    elif _LEGACY in data:
        inner = data[_LEGACY]
        draft.root = below(pointer, _LEGACY)
        for key in data:
            if key != _LEGACY:
                unknown(draft, key, below(pointer, key), (_LEGACY,))
        if isinstance(inner, dict):
            translate_legacy(draft, inner)
        else:
            draft.problem(draft.root, "must be an object, or the name of a preset", BAD_VALUE)
    elif _QCONFIG in data:
        translate_qconfig(draft, data)
    else:
        translate_legacy(draft, data)
    if draft.problems:
        raise _refusal(tuple(draft.problems))
    return Translation(draft.config, tuple(draft.notes), tuple(draft.honoured), dict(draft.origins), draft.root)


def translate_document(data: Any, pointer: str = "") -> Translation | None:
    """The translation of a config document in Quark's envelope; None for a document of ours.

    Raises:
        InvalidConfigError: as ``translate`` does, or for unknown keys of the envelope.
    """
    if not isinstance(data, dict) or data.get("format") != ENVELOPE_FORMAT:
        return None
    draft = QuarkDraft(pointer)
    for key in data:
        if key not in ("format", "config", *PASSED):
            unknown(draft, key, below(pointer, key), ("format", "config", *PASSED))
    if "config" not in data:
        draft.problem(pointer, "config is missing: it must contain the Quark config", BAD_VALUE)
    if draft.problems:
        raise _refusal(tuple(draft.problems))
    found = translate(data["config"], below(pointer, "config"))
    _pass_on(found, data)
    return found


def _pass_on(found: Translation, data: Mapping[str, Any]) -> None:
    """Our own keys beside the Quark config; metrics that it declares itself come behind those given there."""
    own = found.config.get("evaluation", {}).get("metrics", [])
    found.config.update({key: data[key] for key in PASSED if key in data})
    evaluation = found.config.get("evaluation")
    given = evaluation.get("metrics", []) if isinstance(evaluation, dict) else None
    if not own or evaluation is None or given is own or not isinstance(given, list | tuple):
        return
    found.config["evaluation"] = {**evaluation, "metrics": [*given, *own]}
    for k in range(len(own)):
        found.origins[f"evaluation/metrics/{len(given) + k}"] = found.origins.pop(f"evaluation/metrics/{k}")


def missing_envelope(data: Any, pointer: str = "") -> InvalidConfigError | None:
    """What to tell of a Quark config that stands where a config of ours does, without its envelope; None if it is none.

    Args:
        data: the document.
        pointer: where it stands.
    """
    found = _quark_words(data)
    if not found:
        return None
    listed = ", ".join(found[:4])
    message = f"this is a config of AMD Quark ({listed}), which must be wrapped in an envelope"
    problem = FieldProblem(pointer=pointer, code=NO_ENVELOPE, message=message)
    what = f"the value of {found[0]}" if found[0] in _CLASSES else "the whole config"
    return InvalidConfigError(
        problem_summary((problem,)),
        errors=(problem,),
        hint=f'Write {{"format": "{ENVELOPE_FORMAT}", "config": ...}} and replace the dots with {what}; see {PAGE}.',
    )


def _quark_words(data: Any) -> list[str]:
    """Keys of a document that only Quark has; none if a key of ours says that it is meant as ours."""
    if not isinstance(data, dict) or "format" in data or any(key in data for key in _OURS_ALONE):
        return []
    return [key for key in data if isinstance(key, str) and key in _QUARKS_ALONE]


def read_config(data: Any, *, pointer: str = "") -> QuantizationConfig:
    """Validate and resolve a config document of a user's, ours or in Quark's envelope.

    Args:
        data: the decoded JSON document.
        pointer: JSON pointer of ``data`` within the request body.

    Raises:
        InvalidConfigError: as ``translate_document`` or ``parse_config`` does, with pointers into ``data``.
    """
    translation = translate_document(data, pointer)
    bare = missing_envelope(data, pointer) if translation is None else None
    if bare is not None:
        raise bare
    if translation is None:
        return parse_config(data, pointer=pointer)
    try:
        return parse_config(translation.config, pointer=pointer)
    except InvalidConfigError as error:
        problems = translation.relocated(error.errors, pointer)
        raise InvalidConfigError(problem_summary(problems), errors=problems, hint=error.hint) from None


def _refusal(problems: tuple[FieldProblem, ...]) -> InvalidConfigError:
    return InvalidConfigError(
        problem_summary(problems),
        errors=problems,
        hint=f"See the supported Quark keys in {PAGE}.",
    )


def _preset_name(data: Any) -> tuple[str, str] | None:
    """(name of a preset, the key that gives it) where a preset is all or the beginning of the config."""
    if isinstance(data, str):
        return data, ""
    if isinstance(data, dict):
        for key in ("preset", _LEGACY, _QCONFIG):
            if isinstance(data.get(key), str):
                return data[key], key
    return None


def _translate_preset(draft: QuarkDraft, name: str, key: str, data: Any) -> None:
    """A preset, with what the rest of ``data`` says on top."""
    at = below(draft.root, key) if key else draft.root
    preset = find_preset(f"{name}_QCONFIG") if key == _QCONFIG else None
    preset = preset or find_preset(name)
    if preset is None:
        draft.problem(at, missing_preset(name), UNKNOWN)
        return
    draft.config["preset"] = preset.name
    draft.origins["preset"] = at
    draft.honour(at)
    for note in preset.notes:
        draft.note(at, note)
    rest = {field: value for field, value in data.items() if field != key} if isinstance(data, dict) else {}
    if rest:
        _on_top(draft, preset, rest)


def _on_top(draft: QuarkDraft, preset: Preset, rest: Mapping[str, Any]) -> None:
    settings = copy.deepcopy(preset.settings)
    for side in ("activation", "weight"):
        plain = {"symmetric": True, "scale": "float32", "calibration": {"method": "minmax"}}
        settings[side] = {**plain, **settings[side]}
    for entry in settings.pop("algorithms"):
        draft.steps[entry.pop("method")] = QuarkStep(entry, draft.origins["preset"], of_preset=True)
    draft.config.update(settings)
    read_fields(draft, rest)
    for name in _MADE_OF:
        if name in draft.given:
            why = f"the preset {preset.name} depends on it; give the full config instead of the preset's name"
            draft.problem(draft.given.pop(name).pointer, f"{name} cannot be changed: {why}")
    if any(name in draft.given for name in BIAS_KEYS):
        del draft.config["bias"]
    translate_excludes(draft)
    apply_all(draft)
    finish(draft)


__all__ = ["Note", "Translation", "missing_envelope", "read_config", "translate", "translate_document"]
