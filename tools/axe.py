"""Fetch axe-core, which the tests of the pages run in a browser, from the npm registry; no package manager is needed.

usage: python tools/axe.py FOLDER

The version is pinned, and the bytes are those of the digest below or are not kept. ``NPM_CONFIG_REGISTRY``, or what npm
is set to where it is installed, names the registry.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "4.14.1"
INTEGRITY = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
FILE = "axe.min.js"
_MOST_BYTES = 32 * 1024**2
_SECONDS = 60


def registry() -> str:
    """Address of the registry, without a slash at its end."""
    named = os.environ.get("NPM_CONFIG_REGISTRY")
    if not named and shutil.which("npm"):
        named = subprocess.run(["npm", "config", "get", "registry"], capture_output=True, text=True).stdout.strip()
    return (named or "https://registry.npmjs.org").rstrip("/")


def fetch() -> bytes:
    """The package's bytes, checked."""
    address = f"{registry()}/axe-core/-/axe-core-{VERSION}.tgz"
    with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
        data = answer.read(_MOST_BYTES)
    found = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != INTEGRITY:
        raise SystemExit(f"{address} is not the package that was pinned: {found}")
    return data


def main() -> None:
    folder = Path(sys.argv[1])
    with tarfile.open(fileobj=io.BytesIO(fetch())) as package:
        member = package.extractfile(f"package/{FILE}")
        if member is None:
            raise SystemExit(f"axe-core {VERSION} has no {FILE}")
        script = member.read()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(script)
    print(f"axe-core {VERSION} in {folder / FILE}")


if __name__ == "__main__":
    main()
