"""quant_info.json: how every tensor is quantized, and for which module, target and config that was found.

``param``, ``input`` and ``output`` give, by tensor, one entry for each of its scales: [bit width, fraction position] if
the scale is 2^-position and the zero point 0, else [bit width, scale, zero point].
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import orjson

from quantmill.torch.nndct.errors import QuantInfoError
from service.contracts.base import VERSION
from service.contracts.report import AlgorithmFigures
from service.storage import file_sha256
from worker.quantizer.graph.values import plain_attributes

FILE = "quant_info.json"
_AGAIN = "Run mode 'calib' again with the same module, weights, target and config as mode 'test'."

_TOLD_OF_FINETUNING = {"method", "kept", "summary", "nodes", "before", "after"}

Entry = list[int | float]


@dataclass(frozen=True)
class Fingerprint:
    """What a calibration holds for.

    Attributes:
        graph: sha256 of the exported graph without its weights.
        weights: sha256 of the weights.
        target: as it was given.
        config: the resolved config without finetuning.
    """

    graph: str
    weights: str
    target: str | None
    config: dict[str, Any]

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """How what quant_info.json says differs from this, in words."""
        found = []
        if other.get("graph") != self.graph:
            found.append("the graph of the module is another")
        elif other.get("weights") != self.weights:
            found.append("the weights of the module are others")
        if other.get("target") != self.target:
            found.append(f"the target is {self.target!r}, it was {other.get('target')!r}")
        found += [f"config {told}" for told in _unlike(self.config, other.get("config"), "")]
        return found


def fingerprint(onnx_path: Path, target: str | None, config: dict[str, Any]) -> Fingerprint:
    """The fingerprint of an exported module."""
    model = ir.load(onnx_path)
    graph, weights = hashlib.sha256(), hashlib.sha256()
    for value in (*model.graph.inputs, *model.graph.outputs):
        graph.update(f"{value.name} {value.dtype} {value.shape}\n".encode())
    for node in model.graph.all_nodes():
        names = [[value.name if value is not None else None for value in side] for side in (node.inputs, node.outputs)]
        region = node.metadata_props.get("quantmill.region")
        facts = sorted(plain_attributes(node).items())
        graph.update(f"{node.domain} {node.op_type} {names} {facts} {region}\n".encode())
    for name, value in sorted(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None:
            graph.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            weights.update(tensor.tobytes())
    return Fingerprint(graph.hexdigest(), weights.hexdigest(), target, config)


def write(
    folder: Path,
    model_file: Path,
    made_for: Fingerprint,
    *,
    finetuning: AlgorithmFigures | None,
    notes: tuple[str, ...],
) -> Path:
    """Write quant_info.json for a quantized model beside it.

    Args:
        folder: of both.
        model_file: the quantized model.
        made_for: see ``Fingerprint``.
        finetuning: what became of fast finetuning; None: it was not run.
        notes: what is done in another way than in Vitis AI.
    """
    algorithms = [algorithm["method"] for algorithm in made_for.config["algorithms"]]
    document = {
        **tensors(ir.load(model_file)),
        "fast_finetuned": finetuning is not None,
        "finetuning": None if finetuning is None else finetuning.model_dump(mode="json", include=_TOLD_OF_FINETUNING),
        "bias_corrected": "bias_correction" in algorithms,
        "version": VERSION,
        "graph": made_for.graph,
        "weights": made_for.weights,
        "target": made_for.target,
        "config": made_for.config,
        "model": {"file": model_file.name, "sha256": file_sha256(model_file)},
        "notes": list(notes),
    }
    path = folder / FILE
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    return path


def read(folder: Path, wanted: Fingerprint) -> tuple[dict[str, Any], Path]:
    """Read quant_info.json and hold it against the module at hand.

    Returns:
        The document, and the quantized model.

    Raises:
        QuantInfoError: it is missing, damaged, or was made for something else.
    """
    document, path = document_of(folder), folder / FILE
    stored = document["model"]
    differences = wanted.differences(document)
    if differences:
        raise QuantInfoError(f"{path} was made for something else: {'; '.join(differences[:5])}", hint=_AGAIN)
    model = folder / Path(stored["file"]).name
    if not model.is_file():
        raise QuantInfoError(f"there is no {model}, the quantized model that {path} names", hint=_AGAIN)
    found = file_sha256(model)
    if found != stored["sha256"]:
        raise QuantInfoError(
            f"{model} is not the model that {path} was written with: its sha256 is {found}, it was {stored['sha256']}",
            hint=_AGAIN,
        )
    return document, model


def document_of(folder: Path) -> dict[str, Any]:
    """Read quant_info.json, whatever it was made for.

    Raises:
        QuantInfoError: it is missing or damaged.
    """
    path = folder / FILE
    try:
        document = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise QuantInfoError(
            f"there is no {path}", hint="Run mode 'calib' first, and export_quant_config at its end."
        ) from None
    except orjson.JSONDecodeError as error:
        raise QuantInfoError(f"{path} is not JSON: {error}", hint=_AGAIN) from None
    stored = document.get("model") if isinstance(document, dict) else None
    if not isinstance(stored, dict) or not {"file", "sha256"} <= stored.keys():
        raise QuantInfoError(f"{path} names no quantized model", hint=_AGAIN)
    return document  # type: ignore[no-any-return]


def finetuning_of(document: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """What became of fast finetuning: ``method``, ``kept``, ``summary``, ``nodes``, scores ``before`` and ``after``.

    Args:
        document: of ``read``.
        path: of quant_info.json.

    Raises:
        QuantInfoError: the calibration did not finetune.
    """
    if not document.get("fast_finetuned"):
        raise QuantInfoError(
            f"{path} was made without fast finetuning: there are no finetuned parameters to load",
            hint="Call fast_finetune in mode 'calib', before export_quant_config.",
        )
    told = document.get("finetuning")
    if not isinstance(told, dict) or not {"kept", "summary"} <= told.keys():
        raise QuantInfoError(f"{path} does not say what fast finetuning did", hint=_AGAIN)
    return told


def tensors(model: ir.Model) -> dict[str, dict[str, list[Entry]]]:
    """``param``, ``input`` and ``output`` of a quantized model, by the names of the float model's tensors."""
    found: dict[str, dict[str, list[Entry]]] = {"param": {}, "input": {}, "output": {}}
    inputs = {value.name for value in model.graph.inputs}
    for node in model.graph:
        if node.op_type == "QuantizeLinear" and node.inputs[0] is not None:
            name = str(node.inputs[0].name).removesuffix("_QuantizeLinear_Input")
            found["input" if name in inputs else "output"][name] = list(_entries(node, node.outputs[0].dtype))
        elif node.op_type == "DequantizeLinear" and node.inputs[0] is not None:
            stored = node.inputs[0]
            if stored.const_value is not None:
                found["param"][str(stored.name).removesuffix("_quantized")] = list(_entries(node, stored.dtype))
    return found


def _entries(node: ir.Node, dtype: ir.DataType | None) -> Iterator[Entry]:
    scale, zero_point = (_constant(value) for value in node.inputs[1:3])
    if scale is None or dtype is None:
        raise ValueError(f"{node.name!r} has no constant scale")
    bits = int(dtype.bitwidth)
    zeros = np.zeros(scale.size) if zero_point is None else zero_point.astype(np.int64).reshape(-1)
    for number, zero in zip(scale.reshape(-1).tolist(), zeros.tolist(), strict=True):
        mantissa, exponent = math.frexp(number)
        if mantissa == 0.5 and zero == 0:
            yield [bits, 1 - exponent]
        else:
            yield [bits, number, int(zero)]


def _constant(value: ir.Value | None) -> np.ndarray | None:
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _unlike(mine: Any, theirs: Any, at: str) -> Iterator[str]:
    """Places in which two documents differ."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in sorted(mine.keys() | theirs.keys()):
            yield from _unlike(mine.get(key), theirs.get(key), f"{at}/{key}")
    elif mine != theirs:
        yield f"{at or '/'}: {mine!r}, it was {theirs!r}"
