"""How long a test waits for what must happen. It only ends a hang: a busy machine may take its time.

QUANTMILL_TEST_PATIENCE_SECONDS: less, for whoever waits for a test that hangs.
"""

from __future__ import annotations

import os

PATIENCE_SECONDS = float(os.environ.get("QUANTMILL_TEST_PATIENCE_SECONDS", "240"))
