"""What the names of Vitis AI refuse."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class NotOfferedError(QuantmillError):
    """Vitis AI has it, and it cannot be done here."""

    code = "not-offered"
    title = "This part of Vitis AI is not offered"
    status = 422


class StageError(QuantmillError):
    """A step was called in the wrong mode, or before what it needs: forward passes, a calibration."""

    code = "wrong-stage"
    title = "The step comes too early, or in the wrong mode"
    status = 422


class QuantInfoError(QuantmillError):
    """quant_info.json is missing or damaged, or was made for another graph, target or config; names the difference."""

    code = "quant-info-mismatch"
    title = "quant_info.json does not fit"
    status = 422
