"""The last resort of the command line: a fault of ours becomes a few lines, and a file that can be reported."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from service.contracts.base import VERSION
from service.contracts.errors import QuantmillError

_KEY_OPTIONS = ("--key",)
# Settings are read whatever the case of their names.
_KEY_VARIABLE = "QUANTMILL_API_KEY"
_HIDDEN = "[hidden]"
# Up to the last @: passwords that nobody encoded hold "@" and "/". Rather too much is hidden than too little.
_USER_IN_URL = re.compile(r"(?<=://)(?:[^/\s:]*:\S*|[^/\s]+)(?=@)")
_SECRET_IN_QUERY = re.compile(r"([?&;][\w.-]*(?:password|passwd|pwd|token|secret|key|signature)=)[^&;#\s'\"]+", re.I)
_LONGEST_TOLD = 300
# Shorter texts would hide parts of innocent words.
_SHORTEST_SECRET = 4


def crash_error(error: BaseException) -> QuantmillError:
    """The error to tell of ``error``, which is written to a file with its traceback."""
    # What is cut first may be cut within a secret, which nothing finds then.
    told = without_secrets(f"{type(error).__name__}: {error}", sys.argv, os.environ)
    told = _escaped(told.strip().splitlines()[0][:_LONGEST_TOLD])
    try:
        path = _escaped(str(write_crash(error, sys.argv, os.environ)))
    except OSError as refused:
        return QuantmillError(
            f"Quantmill failed, by a fault of its own: {told} (its report could not be written: {refused.strerror}).",
            hint="Free some space in the folder for temporary files, run the command again, and report what it writes.",
        )
    return QuantmillError(
        f"Quantmill failed, by a fault of its own: {told}",
        hint=f"Please report it with the file {path}: it holds the traceback, versions and the command, and no keys.",
    )


def write_crash(error: BaseException, arguments: Sequence[str], environment: Mapping[str, str]) -> Path:
    """Write what is needed to find the fault, readable by this user alone.

    Raises:
        OSError: the disk refused.
    """
    lines = [
        f"quantmill {VERSION}",
        f"python {platform.python_version()} on {platform.platform()}",
        f"command: {' '.join(_redacted(arguments))}",
        "",
        *traceback.format_exception(error),
    ]
    text = without_secrets("\n".join(lines), arguments, environment)
    descriptor, name = tempfile.mkstemp(prefix="quantmill-crash-", suffix=".txt")
    # File names may hold bytes that no encoding has, and the locale's encoding may lack letters.
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write(text)
    return Path(name)


def without_secrets(text: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """``text`` without the service's key, wherever it came from, and without passwords and tokens in addresses."""
    set_keys = [value for name, value in environment.items() if name.upper() == _KEY_VARIABLE]
    secrets = [*_keys(arguments), *set_keys]
    for secret in sorted((one for one in secrets if len(one) >= _SHORTEST_SECRET), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return _SECRET_IN_QUERY.sub(rf"\1{_HIDDEN}", _USER_IN_URL.sub(_HIDDEN, text))


def _escaped(text: str) -> str:
    """``text`` with what cannot be printed, such as a file name's odd bytes, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _keys(arguments: Sequence[str]) -> list[str]:
    """Values of the options that take keys."""
    found = [value for option, value in pairwise(arguments) if option in _KEY_OPTIONS]
    return found + [a.partition("=")[2] for a in arguments if a.partition("=")[0] in _KEY_OPTIONS]


def _redacted(arguments: Sequence[str]) -> list[str]:
    """The command without keys, short ones too."""
    shown: list[str] = []
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if shown and shown[-1] in _KEY_OPTIONS:
            shown.append(_HIDDEN)
        elif equals and option in _KEY_OPTIONS:
            shown.append(f"{option}={_HIDDEN}")
        else:
            shown.append(argument)
    return shown
