"""Prints docs/quark.md."""

from __future__ import annotations

import sys

from service.quark.table import quark_page

sys.stdout.write(quark_page())
