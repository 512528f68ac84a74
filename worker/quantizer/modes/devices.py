"""Devices that a config names are looked for before anything is computed."""

from __future__ import annotations

from service.contracts.config import QuantizationConfig
from service.contracts.devices import DeviceField, device_fields
from service.contracts.errors import DeviceNotThereError
from worker.quantizer.finetune.moments.solver import may_have_gpu
from worker.quantizer.runtime.session import providers_of

_CPU = "cpu"
_CONFIG = "/config"
_ONNXRUNTIME = "infer_device"


def check_devices(config: QuantizationConfig) -> None:
    """Make sure that each GPU that the config asks for is there. Libraries are loaded only where one is.

    Raises:
        DeviceNotThereError: it is not; points to the field.
    """
    for field in device_fields(config):
        if not field.is_gpu:
            continue
        try:
            _device_of(field)
        except DeviceNotThereError as error:
            raise DeviceNotThereError(error.detail, hint=error.hint, pointer=_CONFIG + field.pointer) from None


def devices_of(config: QuantizationConfig) -> list[str]:
    """What each field of the config that names a device leads to on this host, in order.

    Raises:
        DeviceNotThereError: a GPU that a field asks for is not there.
    """
    return [_device_of(field) for field in device_fields(config)]


def _device_of(field: DeviceField) -> str:
    if field.pointer.endswith(_ONNXRUNTIME):
        return str(providers_of(field.value)[0])
    if field.value == _CPU or not (field.is_gpu or may_have_gpu()):
        return _CPU
    import torch

    from worker.quantizer.autodiff.device import choose_device  # loads torch

    device = choose_device(field.value)
    return _CPU if device.type == _CPU else f"{device} {torch.cuda.get_device_name(device)}"
