"""The queues, and which kind of job goes into which."""

from __future__ import annotations

QUEUES = ("cpu", "gpu", "inspect")
# Validation takes seconds and somebody waits for it: it must not stand behind jobs that take hours.
_QUEUE_OF_KIND = {
    "quantize": "cpu",
    "inspect_model": "inspect",
    "inspect_dataset": "inspect",
    "inspect_target": "inspect",
}


def queue_of(kind: str) -> str:
    """The queue for jobs of this kind where nobody chose another."""
    return _QUEUE_OF_KIND.get(kind, QUEUES[0])
