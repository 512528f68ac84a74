"""JSON merge patches (RFC 7396): a piece of advice is one of the config that its report was made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.contracts.config import QuantizationConfig, parse_config


def patched(document: Any, patch: Any) -> Any:
    """``document`` with a merge patch applied (RFC 7396, section 2); both stay as they are.

    Objects are merged, null removes a key, and everything else, lists included, is replaced whole.
    """
    if not isinstance(patch, Mapping):
        return patch
    result = dict(document) if isinstance(document, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), value)
    return result


def patch_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest merge patch that makes ``after`` of ``before``, but that what is null in ``after`` is left out."""
    patch: dict[str, Any] = dict.fromkeys(key for key in before if key not in after)
    for key, new in after.items():
        old = before.get(key)
        if old != new:
            patch[key] = patch_between(old, new) if isinstance(old, Mapping) and isinstance(new, Mapping) else new
    return patch


def advised_config(config: QuantizationConfig, patch: Mapping[str, Any]) -> QuantizationConfig:
    """The config of a report with a piece of advice applied, resolved.

    Args:
        config: the report's ``manifest.config``.
        patch: the advice's ``config``.

    Raises:
        InvalidConfigError: they do not go together; names the fields.
    """
    return parse_config(patched(config.model_dump(mode="json"), dict(patch)))
