"""The queues, which job goes into which, and public identifiers in the order of creation."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable
from typing import Literal

CPU_QUEUE, GPU_QUEUE = "cpu", "gpu"
QUEUES = (CPU_QUEUE, GPU_QUEUE, "inspect")
SizeClass = Literal["short", "long"]
# Validation takes seconds and somebody waits for it: it must not stand behind jobs that take hours.
_QUEUE_OF_KIND = {
    "quantize": CPU_QUEUE,
    "evaluate": CPU_QUEUE,
    "inspect_model": "inspect",
    "inspect_dataset": "inspect",
    "inspect_target": "inspect",
}
# What all other algorithms do, train or search, takes as long as it takes, however small the model.
_QUICK_METHODS = frozenset({"outlier_channels", "cross_layer_equalization", "smooth_quant", "awq", "bias_correction"})


def queue_of(kind: str) -> str:
    """The queue for jobs of this kind where nobody chose another."""
    return _QUEUE_OF_KIND.get(kind, CPU_QUEUE)


def size_class_of(kind: str) -> SizeClass:
    """Short for a kind that always is; of others config and data decide: see ``is_short``."""
    return "long" if queue_of(kind) == CPU_QUEUE else "short"


def is_short(methods: Iterable[str], *, size_bytes: int, samples: int, most_bytes: int, most_samples: int) -> bool:
    """True for a job that surely takes minutes at most: nothing is trained or searched, and little is read.

    Args:
        methods: of the algorithms of its config.
        size_bytes: of the models and the data together.
        samples: of calibration and evaluation data together.
        most_bytes: bound of ``size_bytes``.
        most_samples: bound of ``samples``.
    """
    return _QUICK_METHODS.issuperset(methods) and size_bytes <= most_bytes and samples <= most_samples


# Public identifiers: a type prefix and a UUIDv7 in lowercase base32, so that their order is the order of creation.

Prefix = Literal[
    "job", "mdl", "dst", "upl", "art", "ins", "req", "key", "whk", "evt", "dlv", "sch", "run", "bat", "hov", "aud"
]
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 26
_PATTERN = re.compile(rf"(job|mdl|dst|upl|art|ins|req|key|whk|evt|dlv|sch|run|bat|hov|aud)_[{_ALPHABET}]{{{_LENGTH}}}")


def new_id(prefix: Prefix) -> str:
    """A fresh id such as ``job_01jd3v8g5z7k2m4n6p8q0r1s2t``."""
    return f"{prefix}_{_base32(_uuid7())}"


def is_id(value: str, prefix: Prefix) -> bool:
    """True if ``value`` is spelled as an id of this kind; whether it exists is another question."""
    return _PATTERN.fullmatch(value) is not None and value.startswith(prefix + "_")


def _uuid7() -> int:
    """UUIDv7 (RFC 9562): 48 bits of milliseconds, version, 12 bits of their fraction (method 3), variant, 62 random."""
    milliseconds, rest_nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = (rest_nanoseconds << 12) // 1_000_000
    return (milliseconds & (2**48 - 1)) << 80 | 7 << 76 | fraction << 64 | 2 << 62 | secrets.randbits(62)


def _base32(number: int) -> str:
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in reversed(range(_LENGTH)))
