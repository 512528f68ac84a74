"""axe-core for tests: ``make axe`` fetches it. Without it they are skipped; with CI=true they fail.

QUANTMILL_TEST_AXE: where else its script lies.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from tests.support.source import ROOT

_PLACE = ROOT / ".venv-axe" / "axe.min.js"
# Of what it finds, by its own words; the others are matters of taste.
GRAVE = frozenset({"serious", "critical"})
_RUN = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .map(one => ({id: one.id, impact: one.impact, where: one.nodes.map(node => node.html.slice(0, 160)).slice(0, 5)}))"""


def axe_script() -> Path:
    """The script, whether or not it is there."""
    return Path(os.environ.get("QUANTMILL_TEST_AXE", _PLACE))


@functools.cache
def axe_trouble() -> str | None:
    """Why pages cannot be checked with axe-core; None if they can."""
    return None if axe_script().is_file() else "no axe-core: pages are not checked with it; make axe"


def grave_findings(page: Any) -> list[dict[str, Any]]:
    """What axe-core calls serious or critical in a page, whose context has to bypass the policy of scripts."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(axe_script().read_text(encoding="utf-8"))
    return [one for one in page.evaluate(_RUN) if one["impact"] in GRAVE]
