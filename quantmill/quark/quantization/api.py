"""Where Quark has its quantizer."""

from quantmill.quark.quantizer import ModelQuantizer

__all__ = ["ModelQuantizer"]
