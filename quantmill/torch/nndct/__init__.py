"""The names of Vitis AI's ``pytorch_nndct`` on this engine.

``from pytorch_nndct.apis import torch_quantizer`` becomes ``from quantmill.torch.nndct.apis import torch_quantizer``,
``from pytorch_nndct.nn import QuantStub, DeQuantStub`` becomes ``from quantmill.torch.nndct.nn import ...``,
``from pytorch_nndct import QatProcessor`` becomes ``from quantmill.torch.nndct import QatProcessor``.
"""

from quantmill.torch.nndct import nn
from quantmill.torch.nndct.apis import Inspector, QatProcessor, TorchQuantizer, dump_xmodel, torch_quantizer
from quantmill.torch.stubs import DeQuantStub, QuantStub

__all__ = [
    "DeQuantStub",
    "Inspector",
    "QatProcessor",
    "QuantStub",
    "TorchQuantizer",
    "dump_xmodel",
    "nn",
    "torch_quantizer",
]
