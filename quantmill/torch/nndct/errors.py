"""What the names of Vitis AI refuse."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class NotOfferedError(QuantmillError, code="not-offered", title="This part of Vitis AI is not offered", status=422):
    """Vitis AI has it, and it cannot be done here."""


class StageError(
    QuantmillError, code="wrong-stage", title="The step comes too early, or in the wrong mode", status=422
):
    """A step was called in the wrong mode, or before what it needs: forward passes, a calibration."""


class QuantInfoError(QuantmillError, code="quant-info-mismatch", title="quant_info.json does not fit", status=422):
    """quant_info.json is missing or damaged, or was made for another graph, target or config; names the difference."""
