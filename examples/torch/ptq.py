"""Post-training quantization with the names of Vitis AI's pytorch_nndct.

    python examples/torch/ptq.py --quant_mode calib [--fast_finetune]
    python examples/torch/ptq.py --quant_mode test [--fast_finetune] [--deploy]

The first run trains a small network (a few seconds), lets data through it, and writes quantize_result/. The second one,
a process of its own, judges the quantized network and exports it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from digits import MobileNet, evaluate, load_data, trained

from quantmill.torch.nndct.apis import torch_quantizer


def quantization(args: argparse.Namespace) -> float:
    """One run; the accuracy that it saw."""
    batch_size = 64
    model = trained(MobileNet(), args.model_dir / "mobilenet.pth")
    loss_fn = nn.CrossEntropyLoss()
    val_loader = load_data(train=False, batch_size=batch_size)

    quant_model = model
    if args.quant_mode != "float":
        input = torch.randn([batch_size, 1, 8, 8])  # noqa: A001 - as scripts call it
        quantizer = torch_quantizer(args.quant_mode, model, (input,), output_dir=args.output_dir, target=args.target)
        quant_model = quantizer.quant_model

    if args.quant_mode != "float" and args.fast_finetune:
        ft_loader = load_data(subset_len=512, batch_size=batch_size)
        if args.quant_mode == "calib":
            quantizer.fast_finetune(evaluate, (quant_model, ft_loader, loss_fn))
        else:
            quantizer.load_ft_param()

    # Data to calibrate with comes from the training set; what the accuracy is measured on stays unseen.
    loader = load_data(subset_len=256, batch_size=batch_size) if args.quant_mode == "calib" else val_loader
    accuracy, loss = evaluate(quant_model, loader, loss_fn)
    print(f"{args.quant_mode}: loss {loss:.4f}, top-1 {100 * accuracy:.2f} %")

    if args.quant_mode == "calib":
        quantizer.export_quant_config()
    elif args.quant_mode == "test" and args.deploy:
        print(f"written: {quantizer.export_onnx_model(output_dir=args.output_dir)}")
    return accuracy


def main(arguments: list[str] | None = None) -> float:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quant_mode", default="calib", choices=["float", "calib", "test"])
    parser.add_argument("--fast_finetune", action="store_true", help="finetune by AdaQuant")
    parser.add_argument("--deploy", action="store_true", help="export the quantized model")
    parser.add_argument("--target", default="AMD_AIE2_Nx4_Overlay_cfg0")
    parser.add_argument("--model_dir", type=Path, default=Path("quantize_result"))
    parser.add_argument("--output_dir", type=Path, default=Path("quantize_result"))
    return quantization(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
