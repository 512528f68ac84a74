"""Configs: of both APIs, with presets, specs of tensors and algorithms."""

from quantmill.quark.quantization.config.config import Config, QConfig, QuantizationConfig
from quantmill.quark.quantization.config.custom_config import get_default_config

__all__ = ["Config", "QConfig", "QuantizationConfig", "get_default_config"]
