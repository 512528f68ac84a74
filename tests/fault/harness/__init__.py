"""An installation that a test may break: private servers, real processes, and the signals that hurt them."""

from __future__ import annotations

import os

# QUANTMILL_TEST_FAULTS=long: more jobs and longer outages than there is time for in every run.
LONG = os.environ.get("QUANTMILL_TEST_FAULTS") == "long"
