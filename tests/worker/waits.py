"""A runner of a test's own that may be a spare one: ``python waits.py PROGRAM TASK``, or ``--spare N`` for TASK."""

from __future__ import annotations

import runpy
import sys

from worker.runner_input import await_assignment

program = sys.argv[1]
sys.argv = [program, await_assignment() if "--spare" in sys.argv else sys.argv[-1]]
runpy.run_path(program, run_name="__main__")
