"""A process that judges one seed after the other, until it is ended, or dies of one."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection


def work(pipe: Connection) -> None:
    """Take seeds, give verdicts."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the runtime's own words
    from tests.generated.judge import judged  # whoever started this process needs none of it

    while True:
        pipe.send(vars(judged(pipe.recv())))
