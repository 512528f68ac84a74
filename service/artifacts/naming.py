"""File names for downloads of results: model, recipe and purpose."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from pathlib import PurePosixPath

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.runner import WEIGHTS_KIND
from service.jobs.outcome import NewArtifact

CUSTOM = "custom"
_MODEL_CHARS = 80
# What a recipe is known by; the rest says how it is measured, on what, and on which part of a network.
_NOT_RECIPE = {"evaluation", "tensor_ranges", "calibration_samples", "random_calibration", "seed", "preset"}
_ENDINGS = {"model": "onnx", "report": "report.json", WEIGHTS_KIND: "safetensors"}


def named(artifact: NewArtifact, model_file: str, config: QuantizationConfig) -> NewArtifact:
    """The artifact under the name that it is downloaded under; only model, weights and report have another one.

    Args:
        artifact: of a finished quantization.
        model_file: name of the uploaded file.
        config: resolved recipe.
    """
    ending = _ENDINGS.get(artifact.kind)
    if ending is None:
        return artifact
    return replace(artifact, filename=f"{model_stem(model_file)}.{recipe_name(config)}.{ending}")


def model_stem(model_file: str) -> str:
    """The uploaded file's name without its ending, in letters, digits and ``._-`` alone; ``model`` if none is left."""
    stem = PurePosixPath(model_file.replace("\\", "/")).name
    stem = re.sub(r"\.(onnx|pt2|safetensors|pb)$", "", stem, flags=re.IGNORECASE)
    plain = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "_", plain)[:_MODEL_CHARS].strip("._-") or "model"


def recipe_name(config: QuantizationConfig) -> str:
    """The preset, ``custom`` behind it if the recipe is not the preset's own; and the target, if not the preset's."""
    plain, left_out = parse_config({"preset": config.preset}), _NOT_RECIPE | {"target"}
    own = plain.model_dump(exclude=left_out) == config.model_dump(exclude=left_out)
    words = [config.preset] if own else [config.preset, CUSTOM]
    if config.target != plain.target:
        words.append(config.target)
    return "-".join(words).lower()
