"""What a person sees on a terminal and in a log."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from service.contracts.changes import latency_change, pairs_note
from service.contracts.command_errors import GATE_EXITS, InvalidServerError
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import FieldProblem, InvalidConfigError, InvalidRequestError, NotOnnxError
from service.contracts.evaluation_report import ReportOutline
from service.contracts.report import Finding, GateClause, Interval, Report
from service.contracts.report.layers import CRITICAL_LOGGED, Severity
from service.jobs.schemas import EventOut
from service.models.schemas import ModelRejectedError
from service.reports.figures import milliseconds
from tests.cli.conftest import words
from tests.support.each import each
from tests.support.front import make_report
from worker.cli import app
from worker.commands import views
from worker.commands.console import ProgressView, print_problem
from worker.commands.job_results import check_gate, judged
from worker.commands.remote import show_event
from worker.commands.report_view import print_evaluation, print_report
from worker.commands.summary import print_summary


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)


def plain() -> Console:
    return Console(file=io.StringIO(), width=100, highlight=False)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows_of(told: str) -> list[str]:
    return [words(line) for line in told.splitlines()]


def test_a_terminal_gets_one_line_that_is_rewritten(monkeypatch):
    monkeypatch.setattr("worker.commands.console._KNOWN_SECONDS", 0.0)
    console = terminal()
    with ProgressView(console) as view:
        assert view._line is not None
        view.progress("load")
        view._line.refresh()
        for done in range(11):
            view.progress("statistics", done, 10, "samples")
        view.overall(0.42, 35.0)
        view.progress("a stage of a very long name " * 9, 3, message="m" * 90)
        view._line.refresh()
        assert len(view._line.tasks) == 1
    shown = text(console)
    frames = [words(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", one)) for one in re.split(r"\r|\n", shown) if one.strip()]
    assert "⠋ load 0:00:00" in frames
    assert "⠋ a stage of a very long na… 3 mmmmmmmmmmmmmmm… 0:00:00 42 %, about 35 s left" in frames
    assert shown.count("\n") == 1  # the line is taken away at the end


def test_no_color_is_honoured(monkeypatch):
    report = make_report("fail")
    shown = {}
    for name, value in (("colour", ""), ("none", "1")):
        monkeypatch.setenv("NO_COLOR", value)
        console = Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False)
        print_summary(report, console)
        shown[name] = text(console)
    assert "\x1b[1;31mGate failed: " in shown["colour"]
    assert "[31m" not in shown["none"] and "Gate failed: " in shown["none"]


def test_a_log_gets_a_line_now_and_then():
    console = plain()
    with ProgressView(console) as view:
        for done in range(1001):
            view.progress("statistics", done, 1000, "samples")
        view.log("a [bold]warning[/bold]", "warning")
    assert text(console).splitlines() == [
        "statistics 0/1000 samples", "statistics 1000/1000 samples", "warning: a [bold]warning[/bold]",
    ]  # fmt: skip


def test_a_log_repeats_no_line_and_leaves_critical_findings_to_the_summary():
    console = plain()
    with ProgressView(console) as view:
        for _ in range(3):
            view.progress("layers", 16, 16, "samples")
        view.log(f"{CRITICAL_LOGGED}one-calibration-sample]: ranges of one sample.", "warning")
    assert text(console).splitlines() == ["layers 16/16 samples"]


def test_figures_of_times_have_one_unit_and_a_ratio_of_pairs_says_so():
    assert [milliseconds(0.0973, 0.11), milliseconds(0.11, 0.0973)] == ["97.3 µs", "110.0 µs"]
    assert pairs_note(6.78, 4.90, latency_change(1 / 1.35)) == " (median of pairs)"
    assert not pairs_note(6.78, 4.90, latency_change(4.90 / 6.78))


def test_figures_of_layers_are_shown_where_verbose():
    for verbose in (False, True):
        console = plain()
        ProgressView(console, verbose=verbose).metric("adaround", 3, {"error_before": 1.0, "error_left_percent": 50.0})
        assert ("adaround 3: error_before 1" in text(console)) == verbose


def test_figures_of_a_step_are_one_line_each():
    console = plain()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    with ProgressView(console) as view:
        for step, loss in ((1, 0.51234567), (2, None)):
            data = {"stage": "qat", "step": step, "train_loss": loss, "metric": 91.25}
            show_event(EventOut(seq=step, attempt=1, type="metric", created_at=moment, data=data), view)
    assert text(console).splitlines() == ["qat 1: train_loss 0.5123  metric 91.25", "qat 2: metric 91.25"]


def test_a_problem_names_every_place_and_the_way_out():
    console = plain()
    error = InvalidConfigError(
        "two keys are wrong",
        errors=(
            FieldProblem(pointer="/activaton", code="extra", message="did you mean 'activation'?"),
            FieldProblem(pointer="", code="x", message="the whole is odd"),
        ),
        hint="read the schema",
        node="[red]conv[/red]",
    )
    print_problem(error.problem(request_id="req_1"), console)
    assert text(console).splitlines() == [
        "error[invalid-config]: two keys are wrong",
        "  at /activaton: did you mean 'activation'?",
        "  at /: the whole is odd",
        "  node: [red]conv[/red]",
        "  hint: read the schema",
        "  request: req_1",
    ]


def test_what_an_error_names_is_read_line_by_line():
    console = plain()
    unknown = {"model": "nobody@3", "preset": None, "config": None, "code": "model-not-found", "detail": "None."}
    refused = {"model": "net@1", "preset": "int9", "config": 0, "code": "invalid-config", "detail": "No."}
    members = [{"member": 1, **unknown}, {"member": 2, **refused}]
    needed = [{"kind": "alias", "name": "prod"}, {"kind": "job", "name": "job_1"}]
    error = InvalidRequestError("no", members=members, needed_by=needed, axes=[1, 2], node="conv", span={"from": 1})
    print_problem(error.problem(), console)
    assert text(console).splitlines()[1:] == [
        "  members:",
        "    member 1, model nobody@3: [model-not-found] None.",
        "    member 2, model net@1, preset int9, config 0: [invalid-config] No.",
        "  needed_by:",
        "    alias prod",
        "    job job_1",
        "  axes: 1, 2",
        "  node: conv",
        "  span: from 1",
    ]


def test_what_was_rejected_is_told_once():
    console = plain()
    reason = NotOnnxError("The file is not ONNX.", hint="Export it.", rule={"a": 1}).problem()
    error = ModelRejectedError("mdl_1", pointer="/model_id", reasons=[reason])
    print_problem(error.problem(), console)
    assert text(console).splitlines() == [
        "error[model-rejected]: The model mdl_1 was rejected: The file is not ONNX.",
        "  at --model",
        "  hint: Export it.",
    ]


def test_a_report_groups_what_was_left_in_float_by_reason():
    report = make_report("fail").to_json_dict()
    left = [
        {"name": f"n{index}", "op": op, "reason": "excluded"} for index, op in enumerate(("Relu", "Relu", *"ABCDEFG"))
    ]
    report["layers"] += [*left, {"name": "last", "op": "Softmax", "reason": "no [integer] kernel"}]
    report["layers"] += [
        {"name": f"q{index}", "op": "Conv", "sqnr_db": 20.0 + index, "error_percent": 1.0 + index} for index in range(9)
    ]
    console = plain()
    print_report(type(make_report()).model_validate(report), console)
    shown = text(console)
    assert "9: excluded (2 Relu, 1 A, 1 B, 1 C, 1 D, 1 E, 1 F, 1 G)" in shown
    assert "1: no [integer] kernel (1 Softmax)" in shown
    assert shown.index("9: excluded") < shown.index("1: no [integer]")
    assert "10 nodes quantized" in shown
    assert "Layers by error contribution, the first 5" in shown
    assert [f"q{index}" in shown for index in range(9)] == [False] * 4 + [True] * 5
    assert "-0.50 points" in shown
    assert "75.0 % smaller" in shown
    assert "2.00x faster" in shown
    assert "Gate failed: " in shown


def test_metrics_are_shown_in_their_units():
    report = make_report().to_json_dict()
    rmse = {"name": "rmse", "kind": "rmse", "unit": "", "better": "lower", "float": 1.25, "quantized": 1.5}
    nearness = {"name": "psnr", "kind": "psnr", "unit": "dB", "better": "higher", "float": None, "quantized": 31.5}
    report["metrics"] += [{**rmse, "drop": 0.25}, {**nearness, "drop": None}]
    console = plain()
    print_report(Report.model_validate(report), console)
    rows = rows_of(text(console))
    assert "top1 (%) 90.00 89.50 -0.50 points ▼" in rows
    assert "rmse 1.25 1.5 +0.25 (worse)" in rows
    assert "psnr (dB) - 31.50 not defined" in rows


def test_a_training_is_told_by_its_best_and_its_last_epoch():
    epochs = [
        {"epoch": number, "steps": number, "train_loss": None, "validation_loss": 1.5 - number / 8, "metric": None,
         "learning_rate": 0.1, "oscillating": 0.25, "frozen": 0.5}
        for number in range(5)
    ]  # fmt: skip
    training = {
        "epochs": epochs, "best_epoch": 3, "metric": "top1", "samples": 9, "validation_samples": 1,
        "learning_rate": 0.125, "device": "cpu", "ended": "epochs",
    }  # fmt: skip
    report = make_report().to_json_dict()
    report["algorithms"] = [{"method": "qat", "kept": True, "summary": "trained", "training": training}]
    console = plain()
    print_report(Report.model_validate(report), console)
    said = text(console)
    assert "Training by qat, learning rate 0.125" in said
    rows = [line.replace("│", "").split() for line in said.splitlines() if "25.00%" in line]
    assert [row[:4] for row in rows] == [
        ["0", "before", "-", "1.5"], ["3", "best", "-", "1.125"], ["4", "last", "-", "1"],
    ]  # fmt: skip
    assert "top1" in said


def lossy(verdict: str = "fail") -> Report:
    """A report of a model that lost accuracy at one layer."""
    told = make_report(verdict).to_json_dict()
    told["layers"][0] |= {"error_percent": 61.0, "nodes": ["conv"]}
    place = {"node": "conv", "error_percent": 55.0, "fact": "half of the values"}
    told["causes"] = [{"kind": "clipping", "message": "activations are clipped", "error_percent": 55.0,
                       "places": [place]}]  # fmt: skip
    told["gate"] = [GATE[0], GATE[1]]
    told["advice"] = [{"code": "adaround", "message": "Use AdaRound.", "because": "x", "status": "untried",
                       "helped": None, "config": {"preset": "int8_accurate"}}]  # fmt: skip
    return Report.model_validate(told)


def test_a_summary_is_five_lines(tmp_path):
    console = Console(file=io.StringIO(), width=300, highlight=False)
    print_summary(lossy(), console, report_path=tmp_path / "r.json")
    assert [line.rstrip() for line in text(console).splitlines()] == [
        "Gate failed: 1 of 2 conditions of the gate failed. Output SQNR is at least 20.00 dB; measured 12.50 dB.",
        "accuracy  Top-1 accuracy 90.00 % -> 89.50 %, -0.50 points ▼ (on the calibration data; --evaluation "
        "measures on other data)",
        "size      3.91 KiB -> 1000 B, 75.0 % smaller",
        "latency   1.00 ms -> 0.50 ms, 2.00x faster",
        "look at   conv (Conv): 61 % of all error, activations are clipped. Try: Use AdaRound. "
        f"Apply it with `quantmill apply-advice {tmp_path}/r.json --output config.json`.",
    ]


def test_a_summary_begins_with_what_makes_its_figures_worthless():
    console = plain()
    found = Finding(code="random-data", severity="critical", message="random data", hint="Give data.")
    minor = Finding(code="minor", severity="warning", message="few samples")
    more = [minor.model_copy(update={"code": f"more-{k}"}) for k in range(4)]
    print_summary(make_report("pass").model_copy(update={"findings": (found, minor, *more), "metrics": ()}), console)
    lines = text(console).splitlines()
    assert lines[:2] == ["critical[random-data]: random data", "  hint: Give data."]
    assert lines[2].startswith("Critical finding: Fix the critical finding before you use the model")
    assert lines[3] == "accuracy  not measured (no labels); top-1 agreement 99.00 % on calibration data"
    assert lines[-4:] == [
        "warning[minor]: few samples", "warning[more-0]: few samples", "warning[more-1]: few samples",
        "2 more in the report (-v)",
    ]  # fmt: skip


def doubted(*findings: Finding, used: str | None = None) -> str:
    """The last line about a float model that is mostly wrong."""
    report = lossy()
    spec = PreprocessingSpec() if used is None else PreprocessingSpec.model_validate(used)
    manifest = report.manifest.model_copy(update={"calibration_preprocessing": spec})
    metric = report.metrics[0].model_copy(update={"kind": "top1", "float_": 12.5})
    console = Console(file=io.StringIO(), width=300, highlight=False)
    changed = {"metrics": (metric,), "findings": findings, "manifest": manifest}
    print_summary(report.model_copy(update=changed), console)
    return next(line for line in text(console).splitlines() if line.startswith("look at"))


def finding(code: str, hint: str | None, *, severity: Severity = "critical", undermines: bool = True) -> Finding:
    return Finding(code=code, severity=severity, message="it is so", hint=hint, undermines_verdict=undermines)


@pytest.mark.parametrize("hint", [None, 'Values from 0 to 1: set the preprocessing to `{"a": {}}`.'])
def test_a_summary_doubts_the_preprocessing_of_a_float_model_that_is_mostly_wrong(hint):
    told = doubted(*([finding("input-fits-better-otherwise", hint, undermines=False)] if hint else []))
    assert told.startswith(
        "look at   Top-1 accuracy of the float model is 12.50 %, so the preprocessing probably does not"
    )
    hinted = "Values from 0 to 1: use `--preprocessing '{\"a\": {}}'`."
    assert (hinted if hint else "`--preprocessing imagenet_torchvision|imagenet_tf|imagenet_caffe|cifar10`") in told


def test_a_summary_follows_the_finding_that_explains_wrong_decisions_of_the_float_model():
    chance = finding("float-metric-at-chance", "Check all.")
    tried = "so the preprocessing probably does not match. Try `--preprocessing imagenet_torchvision|imagenet_caffe|"
    assert tried in doubted(chance, used="imagenet_tf")
    for cause in (
        finding("labels-shifted", "Add -1."),
        finding("labels-never-decided", "Add -1.", severity="warning", undermines=False),
        finding("float-output-constant", "Add -1."),
    ):
        told = doubted(chance, cause, used="imagenet_tf")
        assert told == f"look at   Top-1 accuracy of the float model is 12.50 % ({cause.code}). Add -1."


def test_a_collapsed_model_has_failed():
    clause = GateClause(clause="sanity", metric="top1", wanted=10.0, got=0.0, holds=False, why="collapsed: it guesses")
    console = plain()
    print_summary(make_report("fail").model_copy(update={"gate": (clause,)}), console)
    assert text(console).startswith("Gate failed: collapsed: It guesses.")


def test_findings_stand_before_all_figures():
    console = plain()
    found = Finding(
        code="one-calibration-sample", severity="critical", message="ranges of 1 [sample]", hint="Give more."
    )
    print_report(make_report().model_copy(update={"findings": (found,)}), console)
    lines = text(console).splitlines()
    assert lines[:2] == ["critical[one-calibration-sample]: ranges of 1 [sample]", "  hint: Give more."]
    assert "fidelity" in text(console)


GATE = [
    {"clause": "max_drop", "metric": "top1", "wanted": 1.0, "got": 0.5, "holds": True},
    {"clause": "min_sqnr_db", "wanted": 20.0, "got": 12.5, "holds": False},
    {"clause": "max_latency_ratio", "wanted": 1.0, "got": 1.01, "holds": None, "why": "the runs are too few",
     "samples_needed": 4000},
]  # fmt: skip
INTERVAL = {"low": -0.1, "high": 1.1, "confidence": 0.95, "method": "wilson", "samples": 100}
TOP1 = {
    "name": "top1", "kind": "top_k", "unit": "%", "better": "higher", "value": 89.5, "reference_value": 90.0,
    "drop": 0.5, "drop_interval": INTERVAL, "p_value": 0.0311,
}  # fmt: skip
MANIFEST = {
    "engine_version": "1", "model_sha256": "0" * 64, "evaluation_sha256": "0" * 64, "evaluation_preprocessing": {},
    "evaluation": {}, "versions": {}, "threads": 1,
}  # fmt: skip


def evaluation(**changes: Any) -> str:
    """What is shown of an evaluation."""
    told = {
        "verdict": "fail", "gate": GATE, "samples": 100, "model": {"size_bytes": 1024, "latency_ms": 1.0},
        "reference": {"size_bytes": 4096, "latency_ms": 2.0}, "metrics": [TOP1], "manifest": MANIFEST,
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=120, highlight=False)
    print_evaluation({**told, **changes}, console)
    return text(console)


def test_the_change_and_each_condition_of_an_evaluation_are_told() -> None:
    lines = rows_of(evaluation())
    change = "-0.50 points (not significant) (95 % CI: -1.10 to +0.10 points), p = 0.0311"
    assert f"top1 (%) 90.00 89.50 {change}" in lines
    assert "size 4.00 KiB 1.00 KiB 75.0 % smaller" in lines
    assert "latency 2.00 ms 1.00 ms 2.00x faster" in lines
    at = lines.index("result Gate failed")
    assert lines[at + 1 :] == [
        "passed: Largest accuracy drop: Top-1 accuracy, -1.00 points; measured -0.50 points.",
        "failed: Output SQNR is at least 20.00 dB; measured 12.50 dB.",
        "undecided: The latency is at most 1.00x the FP32 latency; measured 1.01x. The runs are too few. About 4,000 "
        "samples would decide it.",
    ]


@pytest.mark.parametrize(("verdict", "word"), [("none", "Succeeded, no gate"), ("pass", "Gate passed")])
def test_without_a_reference_nothing_is_compared(verdict: str, word: str) -> None:
    told = evaluation(reference=None, gate=[], verdict=verdict)
    assert "change" not in told
    assert rows_of(told)[-1] == f"result {word}"


def test_without_a_gate_a_summary_begins_with_the_change_of_accuracy():
    report = make_report("none").model_copy(update={"gate": ()})
    (metric,) = report.metrics
    unsure = metric.model_copy(update={"drop_interval": Interval(low=-0.5, high=1.5, method="mcnemar", samples=200)})
    for metrics, told in (
        ((metric,), "Accuracy changed: -0.50 points (significance not tested), 32 samples of the calibration data"),
        (
            (unsure,),
            "Accuracy kept: no significant change (-0.50 points, 95 % CI: -1.50 to +0.50 points), "
            "32 samples of the calibration data",
        ),
        ((), "Accuracy not measured: no labels; top-1 agreement 99.00 %, 32 samples of the calibration data."),
    ):
        console = plain()
        print_summary(report.model_copy(update={"metrics": metrics}), console)
        assert text(console).splitlines()[0] == f"Succeeded, no gate: {told}"


@each(
    ("verdict", "undermines", "code"),
    [("none", True, 4), ("none", False, None), ("undecided", False, 4), ("fail", True, 3), ("pass", False, None)],
)
def test_a_finding_that_allows_no_verdict_is_as_undecided(verdict, undermines, code):
    found = Finding(code="float-at-chance", severity="critical", message="-", undermines_verdict=undermines)
    report = make_report(verdict).model_copy(update={"findings": (found,)})
    assert GATE_EXITS.get(judged(report)) == code


def test_a_verdict_that_is_no_exit_code_is_told(capsys):
    for verdict, quiet in (("pass", False), ("none", False), ("fail", True)):
        check_gate(verdict, False, quiet=quiet)
        assert not capsys.readouterr().err
    for verdict, code in (("fail", "3"), ("undecided", "4")):
        check_gate(verdict, False)
        assert f"(exit code 0; with --fail-on-gate, for CI, it is {code})" in capsys.readouterr().err


@each(("verdict", "told"), [("none", "Critical finding: top1 "), ("pass", "Critical finding: top1 ")])
def test_a_list_of_jobs_names_a_critical_finding(verdict, told):
    found = Finding(code="float-at-chance", severity="critical", message="-")
    report = make_report(verdict)
    outline = ReportOutline.of(report.model_copy(update={"findings": (found,)}))
    assert views._outcome(verdict, outline).startswith(told)
    assert "Critical" not in views._outcome(verdict, ReportOutline.of(report))


@each("command", [("jobs", "list"), ("inspect", "m.onnx")])
def test_an_empty_server_is_refused(command, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"-")
    words = [str(tmp_path / word) if word == "m.onnx" else word for word in command]
    with pytest.raises(InvalidServerError, match="--server is empty"):
        CliRunner().invoke(app, [*words, "--server", ""], catch_exceptions=False)
