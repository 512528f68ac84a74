"""Print the bill of materials of an environment, in CycloneDX 1.6 (JSON): ``python tools/sbom.py [SITE_PACKAGES]``.

The packages that are installed are named with versions, licenses and who needs whom, as their metadata says. There is
nothing in it that changes from one run to the next, but for the environment.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
from importlib.metadata import Distribution, distributions
from uuid import NAMESPACE_URL, uuid5

PROJECT = "quantmill"


def canonical(name: str) -> str:
    """A package's name as PyPI writes it in addresses."""
    return re.sub(r"[-_.]+", "-", name).lower()


def address(package: Distribution) -> str:
    """The package URL, which scanners look up."""
    return f"pkg:pypi/{canonical(package.name)}@{package.version.replace('+', '%2B')}"


def licenses(package: Distribution) -> list[dict]:
    """What the metadata says: an expression, or the first line of a text, or classifiers."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return [{"expression": expression}]
    classifiers = [
        one.rpartition(" :: ")[2] for one in metadata.get_all("Classifier", []) if one.startswith("License ::")
    ]
    text = (metadata.get("License") or "").strip().partition("\n")[0]
    return [{"license": {"name": name}} for name in classifiers or [text] if name]


def component(package: Distribution, kind: str) -> dict:
    found = {"type": kind, "bom-ref": address(package), "name": package.name, "version": package.version}
    found |= {"purl": address(package)}
    if summary := package.metadata.get("Summary"):
        found["description"] = summary
    if known := licenses(package):
        found["licenses"] = known
    return found


def needs(package: Distribution, references: dict[str, str]) -> list[str]:
    """Packages of this environment that it asks for, whatever the condition."""
    names = (re.match(r"[A-Za-z0-9._-]+", line) for line in package.requires or [])
    return sorted({references[canonical(name[0])] for name in names if name and canonical(name[0]) in references})


def bill(packages: list[Distribution]) -> dict:
    """The document."""
    packages = sorted(packages, key=lambda package: canonical(package.name))
    references = {canonical(package.name): address(package) for package in packages}
    ours = next((package for package in packages if canonical(package.name) == PROJECT), None)
    if ours is None:
        raise SystemExit(f"{PROJECT} is not installed there")
    others = [component(package, "library") for package in packages if package is not ours]
    digest = hashlib.sha256(json.dumps(others).encode()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {"component": component(ours, "application")},
        "components": others,
        "dependencies": [
            {"ref": reference, "dependsOn": needs(package, references)}
            for reference, package in ((address(package), package) for package in packages)
        ],
    }


if __name__ == "__main__":
    folders = sys.argv[1:] or [sysconfig.get_path("purelib")]
    print(json.dumps(bill(list(distributions(path=folders))), indent=1))
