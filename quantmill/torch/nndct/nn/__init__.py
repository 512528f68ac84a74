"""``pytorch_nndct.nn``: stubs, and operations as modules."""

from quantmill.torch.nndct.nn import modules
from quantmill.torch.stubs import DeQuantStub, QuantStub

__all__ = ["DeQuantStub", "QuantStub", "modules"]
