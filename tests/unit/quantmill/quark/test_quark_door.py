"""Quark's names: what they serialise to, what ModelQuantizer takes and gives, and readers of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import quantmill.quark as door
from quantmill.quark import ModelQuantizer, QuantFormat, QuantType
from quantmill.quark.documents import Functions, plain
from quantmill.quark.preset_documents import DOCUMENTS
from quantmill.quark.quantization.config import QConfig, custom_config
from quantmill.quark.quantization.config.algorithm import AdaQuantConfig, AdaRoundConfig
from quantmill.quark.quantization.config.config import Config, QuantizationConfig
from quantmill.quark.quantization.config.spec import Int8Spec, QLayerConfig, UInt8Spec
from quantmill.quark.readers import store
from service.contracts.command_errors import FileAccessError
from service.contracts.config import parse_config
from service.contracts.errors import (
    CalibrationMissingError,
    DatasetArraysError,
    EmptyDatasetError,
    InvalidConfigError,
    InvalidRequestError,
)
from service.contracts.presets import find_preset
from service.quark import read_config
from service.quark.equalization import PARAMETERS
from service.quark.finetune import FINETUNE_SETTINGS
from service.quark.mixed import MIXED_SETTINGS
from service.quark.values import CALIB_METHODS, CALIBRATE_METHODS, QUANT_TYPES, SPECS
from tests.support.each import each
from tests.support.provenance import without_provenance
from tests.unit.quantizer.search.benches import chain_of_convolutions, samples
from tests.unit.quantizer.toolbox import data, make_model, network, normal, run_onnx, sqnr_db
from tests.unit.quark.comparing import settings
from worker.quantizer.data import open_dataset

PLAIN = door.Config(global_quant_config=door.QuantizationConfig(activation_type=door.QuantType.QUInt8))


class Items:
    def __init__(self, *items: Any) -> None:
        self.items, self.at = items, 0

    def get_next(self) -> Any:
        self.at += 1
        return self.items[self.at - 1] if self.at <= len(self.items) else None


def reader(count: int = 8) -> Items:
    return Items(*({"x": image[None]} for image in data(count)["x"]))


def resolved(config: Any) -> Any:
    return settings(read_config({"format": "quark", "config": json.loads(json.dumps(config.to_dict()))}))


@each("name", sorted(DOCUMENTS))
def test_a_preset_as_an_object_is_the_preset(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    short = name.removesuffix("_QCONFIG")
    given = (
        [door.Config(door.get_default_config(name)), door.Config(getattr(custom_config, f"{name}_CONFIG"))]
        if short == name
        else [door.QConfig.get_default_config(short)]
    )
    for config in given:
        assert resolved(config) == settings(parse_config({"preset": preset.name}))


def test_presets_may_be_changed_and_stay_as_they_are_for_others() -> None:
    config = door.get_default_config("INT8_CNN_ACCURATE")
    config.calibrate_method = door.CalibrationMethod.MinMax
    config.extra_options["FastFinetune"]["DataSize"] = 7
    del config.extra_options["Percentile"]
    found = read_config({"format": "quark", "config": door.Config(config).to_dict()})
    assert (found.activation.calibration.method, found.algorithms[0].data_size) == ("minmax", 7)
    assert door.get_default_config("INT8_CNN_ACCURATE").extra_options["FastFinetune"]["DataSize"] == 1000
    assert door.get_default_config("XINT8").calibrate_method is door.PowerOfTwoMethod.MinMSE
    mixed = door.get_default_config("S16S16_MIXED_S8S8")
    mixed.extra_options["AutoMixprecision"]["Top1AccTarget"] = 0.02
    found = read_config({"format": "quark", "config": door.Config(mixed).to_dict()})
    assert found.algorithms[0].goal.max_drop == 2.0
    with pytest.raises(InvalidConfigError, match="XINT9"):
        door.get_default_config("XINT9")
    with pytest.raises(AttributeError):
        custom_config.XINT9_CONFIG  # noqa: B018


def test_the_classes_have_every_field_and_word_that_the_translator_knows() -> None:
    fields = {
        door.AdaRoundConfig: FINETUNE_SETTINGS,
        door.AdaQuantConfig: FINETUNE_SETTINGS,
        door.CLEConfig: PARAMETERS["cross_layer_equalization"],
        door.SmoothQuantConfig: PARAMETERS["smooth_quant"],
        door.AutoMixprecisionConfig: MIXED_SETTINGS,
    }
    for kind, parameters in fields.items():
        known = {setting.field: setting.default for setting in parameters if setting.field}
        own = {name: value for name, value in vars(kind()).items() if name != "target_layer_config"}
        assert own.keys() == known.keys(), kind
        assert kind().to_dict() == {"name": kind.name}
        for name, value in own.items():
            if known[name] is not None and value is not None and value != ():
                assert value == (tuple(known[name]) if isinstance(value, tuple) else known[name]), (kind, name)
    for word in (*CALIBRATE_METHODS, *CALIB_METHODS):
        enumeration, member = word.split(".")
        assert plain(getattr(door, enumeration)[member], {}) == word
    assert {*door.QuantType.__members__, *door.ExtendedQuantType.__members__} == set(QUANT_TYPES)
    for name, spec in SPECS.items():
        given = getattr(door, name)()
        words = given.to_dict()
        assert (given.data_type, given.symmetric) == (spec.data_type, spec.symmetric)
        assert (words["scale_type"], words["calibration_method"]) == (spec.scale_type, spec.method)


def test_a_qconfig_says_what_quarks_to_dict_says() -> None:
    first, second = (door.QLayerConfig(activation=door.Int16Spec(), weight=door.Int8Spec()) for _ in range(2))
    config = door.QConfig(
        door.QLayerConfig(input_tensors=door.UInt8Spec(), weight=door.XInt8Spec(symmetric=True)),
        specific_layer_config={first: ["fc", "^conv.*"]},
        layer_type_config={second: ["Gemm"], None: ["Softmax"]},
        exclude=["a", (["b"], ["c"])],
        algo_config=[door.CLEConfig(cle_steps=-1)],
        Percentile=99.9,
    )
    told = json.loads(json.dumps(config.to_dict()))
    assert told["global_config"]["weight"] == {
        "symmetric": True,
        "scale_type": "ScaleType.PowerOf2",
        "calibration_method": "CalibMethod.MinMSE",
        "quant_granularity": "QuantGranularity.Tensor",
        "data_type": "Int8",
    }
    assert [names for _, names in told["layer_type_config"]] == [["Gemm"], ["Softmax"]]
    assert told["layer_type_config"][1][0] is None
    assert told["exclude"] == ["a", [["b"], ["c"]]]
    assert told["extra_options"] == {"Percentile": 99.9}
    assert told["algo_config"] == [{"name": "cle", "cle_steps": -1}]


def test_enumerations_of_others_and_functions_go_by_name() -> None:
    QuantType = Enum("QuantType", ["QInt8"])
    functions: Functions = {}

    def score(outputs: Any) -> float:
        return 1.0

    told = plain([QuantType.QInt8, score, score, lambda outputs: 0.0, np.float32(0.5)], functions)
    assert told == ["QuantType.QInt8", "score", "score", "lambda", 0.5]
    assert list(functions) == ["score", "lambda"]
    with pytest.raises(InvalidConfigError, match="extra_options/x cannot be understood: object"):
        door.QuantizationConfig(extra_options={"x": object()}).to_dict()


@pytest.mark.slow
def test_models_and_data_in_memory_and_in_files_give_the_same_model(tmp_path: Path) -> None:
    images = data(8)["x"]
    (tmp_path / "calibration").mkdir()
    for k, image in enumerate(images):
        np.save(tmp_path / "calibration" / f"{k}.npy", image[None])
    np.savez(tmp_path / "calibration.npz", x=images)
    quantizer = door.ModelQuantizer(PLAIN, threads=1)
    places = (tmp_path / "calibration", tmp_path / "calibration.npz")
    models = [quantizer.quantize_model(network(), calibration_data_path=path) for path in places]
    models.append(quantizer.quantize_model(network(), None, reader()))
    onnx.save(network(), tmp_path / "float.onnx")
    assert quantizer.quantize_model(str(tmp_path / "float.onnx"), str(tmp_path / "q.onnx"), reader()) is None
    models.append(onnx.load(tmp_path / "q.onnx"))
    # they say what file they were made with, and are the same but for that
    assert len({without_provenance(model.SerializeToString()) for model in models if model is not None}) == 1
    assert None not in models
    names = {"calibration", "calibration.npz", "float.onnx", "q.onnx"}
    assert {path.name for path in tmp_path.iterdir()} == names, "nothing is left beside the model"
    assert quantizer.report is not None
    assert quantizer.notes == ()


def test_random_data_is_asked_for_by_option_or_by_its_reader() -> None:
    with pytest.raises(CalibrationMissingError) as caught:
        door.ModelQuantizer(PLAIN).quantize_model(network())
    assert caught.value.errors[0].pointer == "/calibration_data_reader"
    options = {"UseRandomData": True, "RandomDataReaderInputDataRange": {"x": [-1, 1]}}
    config = door.QuantizationConfig(activation_type=door.QuantType.QUInt8, extra_options=options)
    made = []
    for chosen, data_reader in ((config, None), (PLAIN, door.RandomDataReader(input_data_range={"x": [-1, 1]}))):
        quantizer = door.ModelQuantizer(chosen, threads=1)
        model = quantizer.quantize_model(network(), None, data_reader)
        assert model is not None and quantizer.report is not None
        made.append((model.SerializeToString(), quantizer.report.notes[0]))
    assert made[0] == made[1]
    assert made[0][1].startswith("RANDOM DATA")


def test_what_a_quantizer_and_its_call_refuse() -> None:
    for arguments, error, says in (
        ({"algorithms": []}, InvalidRequestError, "belong into the config"),
        ({"calibration_data_path": "x"}, InvalidRequestError, "not both"),
        ({"model_output": "/no/such/folder/q.onnx"}, FileAccessError, "no such folder"),
    ):
        given: dict[str, Any] = {"calibration_data_reader": reader(), **arguments}
        with pytest.raises(error, match=says):
            door.ModelQuantizer(PLAIN).quantize_model(network(), **given)
    with pytest.raises(InvalidConfigError) as caught:
        door.ModelQuantizer(door.QuantizationConfig(extra_options={"UseGPTQ": True}))
    assert caught.value.errors[0].pointer == "/config/extra_options/UseGPTQ"
    with pytest.raises(InvalidConfigError, match="dict, no config"):
        door.ModelQuantizer({})  # type: ignore[arg-type]


def test_items_are_cut_into_samples_where_their_first_axes_agree(tmp_path: Path) -> None:
    x, y = normal(7, 3), normal(7, 2, 2, seed=1)
    parts = [slice(0, 3), slice(3, 5), slice(5, 7)]
    found = np.load(store(Items(*({"x": x[part], "y": y[part]} for part in parts)), tmp_path / "a.npz").path)
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["y"], y)
    limited = store(Items(*({"x": x[part]} for part in parts)), tmp_path / "b.npz", limit=4)
    assert open_dataset(Path(limited.path), limited.preprocessing).samples == 5
    items = [{"x": normal(1, 4, seed=k), "state": normal(2, 1, 3, seed=k), "flag": np.float32(k)} for k in range(3)]
    found = np.load(store(Items(*items), tmp_path / "a.npz").path)
    assert {name: found[name].shape for name in found} == {"x": (3, 1, 4), "state": (3, 2, 1, 3), "flag": (3,)}


class Rewinding(Items, door.CalibrationDataReader):
    def rewind(self) -> None:
        self.at = 0


def test_a_reader_that_was_read_is_set_back_if_it_can_be(tmp_path: Path) -> None:
    for kind in (Rewinding, Items):
        used = kind({"x": normal(2, 3)})
        while used.get_next() is not None:
            pass
        if kind is Rewinding:
            assert np.load(store(used, tmp_path / "a.npz").path)["x"].shape == (2, 3)
        else:
            with pytest.raises(EmptyDatasetError) as caught:
                store(used, tmp_path / "a.npz")
            assert "rewind" in (caught.value.hint or "")


def test_items_that_do_not_fit_are_named(tmp_path: Path) -> None:
    x = normal(2, 3)
    for items, says in (
        ([x], "item 0 .* is ndarray, not a dict"),
        ([{"x": x}, {"x": normal(2, 4)}], r"item 1 .* 'x' is float32\[4\]"),
        ([{"x": x}, {"y": x}], r"it holds \['y'\]"),
        ([{"x": np.array(["a"])}], "'x' holds <U1, no numbers"),
    ):
        with pytest.raises(DatasetArraysError, match=says):
            store(Items(*items), tmp_path / "a.npz")


def test_several_inputs_have_a_folder_each(tmp_path: Path) -> None:
    model = make_model(
        "(float[1,4] a, float[1,4] b) => (float[1,4] y) { [s] t = Add(a, b) [fc] y = MatMul(t, w) }",
        {"w": normal(4, 4)},
    )
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(3):
            np.save(tmp_path / name / f"{k}.npy", normal(1, 4, seed=k))
    quantizer = door.ModelQuantizer(PLAIN, threads=1)
    assert quantizer.quantize_model(model, calibration_data_path=tmp_path) is not None
    (tmp_path / "b" / "2.npy").unlink()
    with pytest.raises(DatasetArraysError, match="'a': 3, 'b': 2"):
        quantizer.quantize_model(model, calibration_data_path=tmp_path)


@pytest.mark.slow  # starts a process
def test_the_names_alone_load_no_engine() -> None:
    code = (
        "import sys, quantmill.quark, quantmill.quark.quantization.api; "
        "print(*{'torch', 'onnxruntime', 'onnx', 'sqlalchemy', 'fastapi'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


SAMPLES = 32
MIN_MSE: dict[str, Any] = {
    "quant_format": QuantFormat.QDQ, "calibrate_method": door.PowerOfTwoMethod.MinMSE,
    "activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "enable_npu_cnn": True,
}  # fmt: skip


def in_batches(size: int = 1) -> Items:
    return Rewinding(*({"x": batch} for batch in np.split(samples(SAMPLES)["x"], SAMPLES // size)))


def top1_acc(outputs: torch.Tensor) -> float:
    _, preds = torch.max(outputs, 1)
    labels = run_onnx(chain_of_convolutions(outlier=2), {"x": samples(SAMPLES)["x"]})["y"].argmax(axis=1)
    assert len(preds) == len(labels)
    return sum(int(pred == label) for pred, label in zip(preds, labels, strict=True)) / len(preds)


def legacy(**fields: Any) -> Config:
    return Config(global_quant_config=QuantizationConfig(**fields))


MIXED = {"ActTargetQuantType": QuantType.QInt8, "WeightTargetQuantType": QuantType.QInt8, "OutputIndex": 0}
ADAROUND = {"OptimAlgorithm": "adaround", "OptimDevice": "cpu", "BatchSize": 1, "NumIterations": 1000}
EQUALIZED = {"ReplaceClip6Relu": True, "CLESteps": 1, "CLEScaleAppendBias": True}
LAYER = QLayerConfig(activation=UInt8Spec(), weight=Int8Spec())
# name -> config, algorithm that has to have run
CONFIGS: dict[str, tuple[Any, str]] = {
    "cross-layer equalization": (
        legacy(**MIN_MSE, include_cle=True, extra_options={"ActivationSymmetric": True, **EQUALIZED}),
        "cross_layer_equalization",
    ),
    "mixed precision": (
        legacy(
            calibrate_method=door.CalibrationMethod.Percentile,
            quant_format=door.VitisQuantFormat.QDQ,
            activation_type=door.VitisQuantType.QInt16,
            weight_type=QuantType.QInt8,
            include_auto_mp=True,
            extra_options={
                **{"ActivationSymmetric": False, "WeightsSymmetric": True, "Int32Bias": False},
                "AutoMixprecision": {**MIXED, "Top1AccTarget": 0.1, "EvaluateFunction": top1_acc},
            },
        ),
        "mixed_precision",
    ),
    "fast finetune": (
        legacy(
            **MIN_MSE,
            include_fast_ft=True,
            extra_options={"ActivationSymmetric": True, "FastFinetune": {**ADAROUND, "LearningRate": 0.1}},
        ),
        "adaround",
    ),
    "AdaRoundConfig": (
        QConfig(LAYER, algo_config=[AdaRoundConfig(batch_size=1, num_iterations=1000, learning_rate=0.1)]),
        "adaround",
    ),
    "AdaQuantConfig": (QConfig(LAYER, algo_config=[AdaQuantConfig(num_iterations=4, data_size=4)]), "adaquant"),
}


@pytest.fixture(scope="module")
def float_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("float") / "float.onnx"
    onnx.save(chain_of_convolutions(outlier=2), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_configs_of_the_documentation_run(name: str, float_model: Path, tmp_path: Path) -> None:
    config, method = CONFIGS[name]
    quantizer = ModelQuantizer(config, threads=1)
    assert quantizer.quantize_model(str(float_model), str(tmp_path / "q.onnx"), in_batches()) is None
    report = quantizer.report
    assert report is not None
    assert [entry.method for entry in report.algorithms] == [method]
    x = {"x": samples(SAMPLES)["x"]}
    got, expected = (run_onnx(onnx.load(path), x)["y"] for path in (tmp_path / "q.onnx", float_model))
    assert sqnr_db(expected, got) > 10.0
    assert sum(layer.reason is None for layer in report.layers) >= 5


def test_mixed_precision_calls_the_function_and_keeps_to_its_target(float_model: Path) -> None:
    quantizer = ModelQuantizer(CONFIGS["mixed precision"][0], threads=1)
    model = quantizer.quantize_model(str(float_model), None, in_batches(8))
    assert quantizer.report is not None and model is not None
    (metric,) = quantizer.report.metrics
    assert (metric.name, metric.float_) == ("top1_acc", 1.0)
    assert metric.quantized is not None and metric.quantized >= 0.9
    got = run_onnx(model, {"x": samples(SAMPLES)["x"]})["y"]
    assert top1_acc(torch.from_numpy(got)) == pytest.approx(metric.quantized)


def test_the_numbers_of_the_documentation_leave_the_fast_solver(float_model: Path) -> None:
    for name in ("fast finetune", "AdaRoundConfig"):
        (step,) = ModelQuantizer(CONFIGS[name][0]).recipe.algorithms
        assert step.solver == "moments", name
    own = AdaRoundConfig(num_iterations=40, data_size=8)
    quantizer = ModelQuantizer(QConfig(LAYER, algo_config=[own]), threads=1)
    assert quantizer.recipe.algorithms[0].solver == "gradient"
    assert any("num_iterations 40" in note for note in quantizer.notes)
