"""The report as JUnit XML: each condition of the gate is a test case, and so is each critical finding."""

from __future__ import annotations

from xml.etree import ElementTree

from service.contracts.report import Finding, Report
from service.reports import verdict
from service.reports.figures import name, prose
from service.reports.verdict import Condition

_GATE, _FINDINGS = "quantmill.gate", "quantmill.findings"


def junit(report: Report) -> str:
    """The document.

    A failed clause is a failure. An undecided one is an error where the gate counts it as failed (``on_undecided``),
    else it is skipped, with the reason as message. A critical finding is a failure; all others are in the suite's
    output. Without a gate there is one skipped case that says so.
    """
    strict = report.manifest.config.evaluation.gate.on_undecided == "fail"
    root = ElementTree.Element("testsuites", {"name": "quantmill"})
    gate = ElementTree.SubElement(root, "testsuite", {"name": "gate"})
    _properties(gate, report)
    for condition in verdict.conditions(report):
        _clause(gate, condition, strict)
    if not report.gate:
        case = _case(gate, _GATE, "no gate")
        _outcome(case, "skipped", "no-gate", "No gate is set, so there is no verdict.", "")
    findings = ElementTree.SubElement(root, "testsuite", {"name": "findings"})
    for finding in report.findings:
        if finding.severity == "critical":
            case = _case(findings, _FINDINGS, finding.code)
            _outcome(case, "failure", finding.code, finding.message, finding.hint or "")
    others = [_line(finding) for finding in report.findings if finding.severity != "critical"]
    if not len(findings):
        _case(findings, _FINDINGS, "no critical finding")
    found = verdict.blame(report)
    told = [report.summary, *([] if found is None else [verdict.blame_words(found)])]
    ElementTree.SubElement(gate, "system-out").text = "\n".join(map(prose, told))
    if others:
        ElementTree.SubElement(findings, "system-out").text = "\n".join(others)
    seconds = sum(stage.seconds for stage in report.stages)
    gate.set("time", f"{seconds:.3f}")
    findings.set("time", "0")
    for suite in (gate, findings):
        _count(suite, (suite,))
    _count(root, (gate, findings))
    root.set("time", f"{seconds:.3f}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _clause(suite: ElementTree.Element, condition: Condition, strict: bool) -> None:
    case = _case(suite, _GATE, condition.words)
    clause = condition.clause
    between = f" ({condition.interval})" if condition.interval else ""
    told = f"{condition.words}: measured {condition.got}{between}"
    if clause.holds is False:
        _outcome(case, "failure", f"{clause.clause}-broken", told, condition.why)
    elif clause.holds is None:
        _outcome(case, "error" if strict else "skipped", f"{clause.clause}-undecided", told, condition.why)
    else:
        ElementTree.SubElement(case, "system-out").text = prose(told)


def _case(suite: ElementTree.Element, group: str, words: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", {"classname": group, "name": name(words, 200), "time": "0"})


def _outcome(case: ElementTree.Element, kind: str, code: str, message: str, more: str) -> None:
    told = {"message": prose(_sentences(message, more))}
    if kind != "skipped":
        told["type"] = name(code)
    ElementTree.SubElement(case, kind, told).text = prose(more or message)


def _properties(suite: ElementTree.Element, report: Report) -> None:
    made = report.manifest
    facts = {
        "verdict": report.verdict,
        "engine_version": made.engine_version,
        "model_sha256": made.model_sha256,
        "output_sha256": made.output_sha256,
        "float.size_bytes": str(report.float_.size_bytes),
        "quantized.size_bytes": str(report.quantized.size_bytes),
    }
    if report.fidelity.sqnr_db is not None:
        facts["sqnr_db"] = f"{report.fidelity.sqnr_db:g}"
    for word, figures in (("float", report.float_), ("quantized", report.quantized)):
        facts |= {f"{word}.{metric}": f"{value:g}" for metric, value in figures.metrics.items()}
    holder = ElementTree.SubElement(suite, "properties")
    for key, value in facts.items():
        ElementTree.SubElement(holder, "property", {"name": name(key), "value": name(value)})


def _count(element: ElementTree.Element, suites: tuple[ElementTree.Element, ...]) -> None:
    for word, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(word, str(sum(len(list(suite.iter(tag))) for suite in suites)))


def _line(finding: Finding) -> str:
    return prose(f"{finding.severity} [{finding.code}]: {_sentences(finding.message, finding.hint or '')}")


def _sentences(message: str, more: str) -> str:
    """Both in a line; a message ends without a full stop where it stands alone."""
    return (f"{message.removesuffix('.')}. {more}" if more else message).strip()
