"""Partial quantization: QuantStub and DeQuantStub bound what is quantized. ``subm1`` stays in float.

python examples/torch/partial_quantization.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from digits import InvertedResidual, evaluate, head, load_data, stem, trained

from quantmill.torch.nndct.apis import torch_quantizer
from quantmill.torch.nndct.nn import DeQuantStub, QuantStub


class WholeModule(nn.Module):
    """A network of three parts, of which the first and the last are to be quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.subm0 = nn.Sequential(stem(), InvertedResidual(16, 32, 2))
        self.subm1 = InvertedResidual(32, 32, 1)
        self.subm2 = nn.Sequential(InvertedResidual(32, 32, 1), head())

        # define QuantStub/DeQuantStub submodules
        self.quant = QuantStub()
        self.dequant = DeQuantStub()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as scripts call it
        """[N, 1, 8, 8] in [0, 1] -> scores [N, 10]."""
        input = self.quant(input)  # noqa: A001 - begin of part to be quantized
        output0 = self.subm0(input)
        output0 = self.dequant(output0)  # end of part to be quantized

        output1 = self.subm1(output0)

        output1 = self.quant(output1)  # begin of part to be quantized
        output2 = self.subm2(output1)
        output2: Tensor = self.dequant(output2)  # end of part to be quantized
        return output2


def main(arguments: list[str] | None = None) -> float:
    """Quantize the two parts, and return the accuracy of the whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("quantize_result_partial"))
    args = parser.parse_args(arguments)

    model = trained(WholeModule(), args.output_dir / "whole_module.pth")
    loss_fn = nn.CrossEntropyLoss()
    val_loader = load_data(train=False)
    float_accuracy, _ = evaluate(model, val_loader, loss_fn)

    example = torch.randn([64, 1, 8, 8])
    calibrated = torch_quantizer("calib", model, (example,), output_dir=args.output_dir)
    evaluate(calibrated.quant_model, load_data(subset_len=256), loss_fn)
    calibrated.export_quant_config()

    quantizer = torch_quantizer("test", model, (example,), output_dir=args.output_dir)
    accuracy, _ = evaluate(quantizer.quant_model, val_loader, loss_fn)
    written = quantizer.export_onnx_model(dynamic_batch=True)
    print(f"top-1: float {100 * float_accuracy:.2f} %, partly quantized {100 * accuracy:.2f} %; written: {written}")
    return accuracy


if __name__ == "__main__":
    main()
