"""``quantmill.quantize``: the bytes of the command line's run, arrays, functions; names that are there when asked."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import quantmill
from worker.cli import app

EXAMPLES = Path("service/dashboard/examples").resolve()
MODEL, CALIBRATION, EVALUATION = (str(EXAMPLES / name) for name in ("digits.onnx", "calibration.npz", "evaluation.npz"))
PREPROCESSING = '{"inputs": {"image": {"layout": "NHW", "scale": 0.0625}}}'
SPEC = {"inputs": {"image": {"layout": "NHW", "scale": 0.0625}}}


def quantize(**given: Any) -> quantmill.Quantized:
    arguments = {"model": MODEL, "calibration": CALIBRATION, "preprocessing": SPEC, "threads": 1} | given
    return quantmill.quantize(**arguments)


def test_the_bytes_are_those_of_the_command_line(tmp_path: Path) -> None:
    here, there = tmp_path / "here.onnx", tmp_path / "there.onnx"
    words = f"--calibration {CALIBRATION} --evaluation {EVALUATION} --threads 1 --output {there}".split()
    done = CliRunner().invoke(app, ["quantize", MODEL, *words, "--preprocessing", PREPROCESSING])
    assert done.exit_code == 0, done.output
    result = quantize(evaluation=EVALUATION, output=here)
    assert here.read_bytes() == there.read_bytes()
    shown = repr(result)
    assert shown.count("top1") == 1 and "top-1" not in shown and shown.splitlines()[-1].endswith(str(here))
    assert result._repr_html_().startswith("<table><caption>Quantized")


def test_arrays_and_functions() -> None:
    evaluation = dict(np.load(EVALUATION))

    def share(scores: np.ndarray) -> float:
        return float((scores.argmax(1) == evaluation["labels"]).mean())

    result = quantize(
        calibration=dict(np.load(CALIBRATION)),
        evaluation=evaluation,
        config={"evaluation": {"metrics": [{"kind": "top1"}, share], "latency_runs": 1}},
        metrics={"miss": {"function": lambda scores: 1 - share(scores), "better": "lower"}},
    )
    top1, first, miss = result.report.metrics
    assert (first.name, miss.name, miss.better) == ("share", "miss", "lower")
    assert first.quantized == pytest.approx((top1.quantized or 0) / 100)
    assert "deleted when Python exits" in repr(result)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"config": {"evaluation": {"metrics": [lambda scores: 1.0]}}}, "InvalidConfigError", "needs a name"),
        ({"config": {"evaluation": {"metrics": [{"kind": "function", "name": "u"}]}}}, "InvalidConfigError", "u: no"),
        (
            {"config": {"evaluation": {"metrics": [{"kind": "onnx", "graph": {"path": "no.onnx"}}]}}},
            "InvalidConfigError",
            "cannot be read: no.onnx",
        ),
        ({"config": "no.yaml"}, "FileAccessError", "no.yaml cannot be read: No such file"),
        ({"config": "recipe.ini"}, "InvalidConfigError", "recipe.ini is not a config file"),
        ({"config": [1]}, "InvalidConfigError", "A config was expected, not list"),
        ({"metrics": "top1"}, "InvalidRequestError", "metrics: expected a dict or None, not str"),
        ({"metrics": {"top1": 1}}, "InvalidConfigError", "'top1': expected a function, not int"),
        ({"evaluation": np.zeros(3)}, "InvalidRequestError", "evaluation: expected a string, a path, a dict or None"),
        ({"calibration": {"image": [1, [2, 3]]}}, "DatasetError", "'image' cannot be an array"),
        ({"model": None}, "InvalidRequestError", "model: expected a path or an onnx.ModelProto, not NoneType"),
        ({"output": 5}, "InvalidRequestError", "output: expected a string, a path or None, not int"),
        ({"output": "/"}, "FileAccessError", "is a folder"),
        ({"threads": 0}, "InvalidRequestError", "threads: expected 1 or more, not 0"),
        ({"client": "http://127.0.0.1:1"}, "InvalidRequestError", "client: expected Client or None, not str"),
        ({"run": print}, "InvalidRequestError", "run: expected an object with the methods of Run"),
        ({"calibration": "no.npz"}, "FileAccessError", "no such file"),
        ({"calibration": {"image": 3}}, "DatasetError", "not arrays of numbers: image"),
        ({"output": MODEL}, "FileAccessError", "written over"),
        ({"preprocessing": {"inputz": 1}}, "InvalidRequestError", "/preprocessing"),
    ],
)
def test_what_is_refused(given: dict[str, Any], error: str, told: str) -> None:
    with pytest.raises(getattr(quantmill, error)) as caught:
        quantize(**given)
    assert told in str(caught.value)


def test_hints_name_no_routes() -> None:
    with pytest.raises(quantmill.InvalidConfigError, match="unknown preset") as caught:
        quantize(config="int9")
    assert caught.value.hint == "`quantmill presets --all` lists the presets."
    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]


def test_a_config_is_a_file_as_well(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("preset: int8\nseed: 7\n")
    for config in (str(file), file):
        assert quantize(config=config).report.manifest.config.seed == 7
    file.write_text("preset: int8\nsead: 7\n")
    with pytest.raises(quantmill.InvalidConfigError, match="did you mean 'seed'") as caught:
        quantize(config=file)
    assert f"file: {file}, line 2" in caught.value.__notes__


def test_names_are_there_when_asked_and_nothing_is_loaded_before() -> None:
    code = (
        "import sys, quantmill; assert not {'numpy', 'torch', 'onnxruntime', 'httpx'} & set(sys.modules);"
        "print({n for n in dir(quantmill) if n[0] != '_'} == {*quantmill.__all__, *quantmill._MODULES},"
        "quantmill.quark.ModelQuantizer,"
        "[getattr(quantmill, name) for name in quantmill.__all__] != [])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True") and "ModelQuantizer" in done.stdout


def test_a_client_shows_its_service_and_no_secret() -> None:
    key = "qm_0123456789abcdef_hidden-IFAI"
    for kind in (quantmill.Client, quantmill.AsyncClient):
        client = kind("http://user:word@127.0.0.1:1", key=key)
        assert repr(client) == f"{kind.__name__}('http://127.0.0.1:1')"
        assert repr(client.place) == "Place('http://127.0.0.1:1', key ends in IFAI)"
        told = " ".join(repr(getattr(client, name)) for name in {*dir(client), *vars(client)})
        assert "hidden" not in told and "user:word" not in told
    assert "key set" in repr(quantmill.Client("http://127.0.0.1:1", key="short").place)


@pytest.mark.parametrize("kind", [quantmill.Client, quantmill.AsyncClient])
def test_methods_are_functions_that_say_what_they_take_and_return(kind: type) -> None:
    methods = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    assert len(methods) > 60
    for name, method in methods.items():
        assert inspect.isfunction(method) and method.__doc__, name
        typing.get_type_hints(method)
    told = inspect.signature(methods["submit"])
    assert [*told.parameters][:5] == ["self", "model", "calibration", "evaluation", "config"]
    assert told.parameters["model"].default is inspect.Parameter.empty
    assert told.return_annotation == "JobOut"
    awaited = kind is quantmill.AsyncClient
    assert inspect.iscoroutinefunction(methods["submit"]) == awaited
    assert inspect.signature(methods["jobs"]).return_annotation == f"{'Async' * awaited}Iterator[JobListed]"
    bound = kind("http://127.0.0.1:1").submit
    assert inspect.ismethod(bound) and "self" not in inspect.signature(bound).parameters
    assert "submit(self, *, model: 'ModelOut | str', calibration" in pydoc.plain(pydoc.render_doc(kind))


def test_what_a_call_needs_is_missed_before_it_is_sent() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'model'"):
        quantmill.Client("http://127.0.0.1:1").submit()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("submit_batch", {"presets": "int8"}, "presets: expected a list (each a string), not str"),
        ("submit", {"model": "m", "hand_over": ["x"]}, "(each a dict), not list of str"),
        ("wait_ready", {"resource": "mdl_x"}, "resource: expected ModelOut or DatasetOut, not str"),
        ("push_model", {"path": 3}, "path: expected a path or a string, not int"),
        ("push_model", {"path": "no.onnx"}, "no.onnx cannot be read: there is no such file"),
        ("clone", {"job": "job_x", "changes": {"name": object()}}, "cannot be written as JSON"),
        ("job", {"job": "a\nb"}, "is no path of the service"),
        ("report_file", {"job": "job_x", "form": "pdf"}, "'pdf' is no format of a report"),
    ],
)
def test_a_call_says_what_it_takes(name: str, given: dict[str, Any], told: str) -> None:
    client = quantmill.Client("http://127.0.0.1:1")
    with pytest.raises(quantmill.QuantmillError) as caught:
        getattr(client, name)(**given)
    assert told in str(caught.value)
