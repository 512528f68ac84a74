"""Render the chart: run by the Python of ``.venv-helm``, which has Helm, schemas of Kubernetes, and nothing of ours.

Standard input: ``{"chart": FOLDER, "kubernetes": VERSION, "values": {NAME: VALUES}}``. Standard output: for each name
the manifests, the notes, and what Helm or a schema has against them.
"""

from __future__ import annotations

import json
import sys

import helm_python as helm
import kubernetes_validate
import yaml

# Of other projects: no schema of theirs is at hand.
FOREIGN = {"ScaledObject", "ServiceMonitor"}


def faults(document: dict, version: str) -> list[str]:
    if document["kind"] in FOREIGN:
        return []
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{document['kind']} {document['metadata']['name']}: {error}"]
    return []


def rendered(chart_folder: str, version: str, values: dict) -> dict:
    linted = helm.lint(chart_folder, values, strict=True, kube_version=f"v{version}.0")
    found = [message["error"] for message in linted["messages"] if message["severity"] > 1] + linted["errors"]
    try:
        with helm.Chart.load(chart_folder) as chart:
            chart.validate_schema(values)
            files = chart.render(values, name="prod", namespace="quant")
    except helm.HelmError as error:
        return {"documents": [], "notes": "", "faults": [*found, str(error)]}
    notes = "".join(text for name, text in files.items() if name.endswith("NOTES.txt"))
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text) if document]
    found += [fault for document in documents for fault in faults(document, version)]
    return {"documents": documents, "notes": notes, "faults": found}


def main() -> None:
    asked = json.load(sys.stdin)
    answers = {name: rendered(asked["chart"], asked["kubernetes"], each) for name, each in asked["values"].items()}
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
