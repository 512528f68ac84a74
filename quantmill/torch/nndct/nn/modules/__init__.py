"""``pytorch_nndct.nn.modules``."""

from quantmill.torch.nndct.nn.modules import functional

__all__ = ["functional"]
