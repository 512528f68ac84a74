"""Configs of AMD Quark's on the command line: translated with a note, and refused with a pointer into the file."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from service.contracts.errors import InvalidConfigError
from worker.commands.local import load_config


def written(folder: Path, quark: dict[str, Any], **passed: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"format": "quark", "config": quark, **passed}))
    return path


def test_a_config_of_quarks_is_translated_and_the_notes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "top1.onnx").write_bytes(b"some bytes")
    metric = {"kind": "onnx", "name": "mine", "graph": {"path": "top1.onnx"}}
    path = written(tmp_path, {"per_channel": True}, evaluation={"metrics": [metric]})
    config = load_config(None, path)
    assert config.weight.granularity == "per_channel"
    assert config.evaluation.metrics[0].graph.base64 == base64.b64encode(b"some bytes").decode()
    assert f"note: {path}: /config: include_cle is not given" in capsys.readouterr().err


def test_what_the_contract_refuses_is_told_of_the_key_in_the_file(tmp_path: Path) -> None:
    quark = {"calibrate_method": "CalibrationMethod.Percentile", "extra_options": {"Percentile": 40}}
    with pytest.raises(InvalidConfigError) as caught:
        load_config(None, written(tmp_path, quark))
    assert [problem.pointer for problem in caught.value.errors] == ["/config/extra_options/Percentile"]
    assert caught.value.detail.startswith("/config/extra_options/Percentile: ")
