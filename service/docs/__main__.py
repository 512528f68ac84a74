"""Prints a page of docs/ that is made from the code: ``python -m service.docs config > docs/config.md``."""

from __future__ import annotations

import argparse
import sys

from service.docs.config_page import config_page
from service.docs.metrics_page import metrics_page
from service.docs.transitions_page import transitions_page

PAGES = {"config": config_page, "metrics": metrics_page, "transitions": transitions_page}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m service.docs", description="Print a generated page of docs/.")
    parser.add_argument("page", choices=PAGES)
    sys.stdout.write(PAGES[parser.parse_args().page]())
