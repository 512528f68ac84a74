"""Prints a page of docs/ that is made from the code: ``python -m service.docs config > docs/config.md``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from service.app import create_app
from service.docs.config_page import config_page
from service.docs.metrics_page import metrics_page
from service.docs.transitions_page import transitions_page
from service.settings import Settings

PAGES = {"config": config_page, "metrics": metrics_page, "transitions": transitions_page}


def openapi_document() -> str:
    """The OpenAPI document, for generators of clients: what ``/openapi.json`` gives, a line per value."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(data_dir=Path(folder)))
        try:
            return json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n"
        finally:
            app.state.app.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m service.docs", description="Print a generated page of docs/.")
    parser.add_argument("page", choices=[*PAGES, "openapi"])
    page = parser.parse_args().page
    sys.stdout.write(openapi_document() if page == "openapi" else PAGES[page]())
