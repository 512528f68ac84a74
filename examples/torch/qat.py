"""Quantization-aware training with the names of Vitis AI's pytorch_nndct.

    python examples/torch/qat.py --mode train
    python examples/torch/qat.py --mode deploy

The first run trains a small float network (a few seconds), then its quantized form, and writes qat_result/. The second
one, a process of its own, judges what was written and exports it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from digits import InvertedResidual, MobileNet, evaluate, load_data, trained

from quantmill.torch.nndct import QatProcessor
from quantmill.torch.nndct.nn import DeQuantStub, QuantStub
from quantmill.torch.nndct.nn.modules import functional


class Residual(InvertedResidual):
    """Adds by a module."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, stride)
        self.skip_add = functional.Add()

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H / stride, W / stride]."""
        made: Tensor = self.layers(x)
        return self.skip_add(made, x) if self.adds else made


class QatMobileNet(MobileNet):
    """The network of ptq.py between stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Residual(16, 32, 2), Residual(32, 32, 1))
        self.quant_stub, self.dequant_stub = QuantStub(), DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        """[N, 1, 8, 8] in [0, 1] -> scores [N, 10]."""
        scores: Tensor = self.dequant_stub(self.head(self.blocks(self.stem(self.quant_stub(x)))))
        return scores


def train(args: argparse.Namespace, quantized_model: nn.Module) -> None:
    """Train with one learning rate for scales and one for weights."""
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(
        [
            {"params": quantized_model.quantizer_parameters(), "lr": args.quantizer_lr},
            {"params": quantized_model.non_quantizer_parameters(), "lr": args.weight_lr},
        ],
        weight_decay=args.weight_decay,
    )
    quantized_model.train()
    for epoch in range(args.epochs):
        seen = 0.0
        for images, labels in load_data():
            optimizer.zero_grad()
            loss = loss_fn(quantized_model(images), labels)
            loss.backward()
            optimizer.step()
            seen += float(loss.detach()) * len(labels)
        print(f"epoch {epoch}: loss {seen / 1200:.4f}")
    quantized_model.eval()


def main(arguments: list[str] | None = None) -> tuple[float, float, float]:
    """Read the arguments and run; the accuracy of the float network, the trained one, and the one that is deployed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="train", choices=["train", "deploy"])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--quantizer_lr", type=float, default=1e-2)
    parser.add_argument("--weight_lr", type=float, default=1e-3)
    parser.add_argument("--weight_decay", type=float, default=1e-4)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--model_dir", type=Path, default=Path("qat_result"))
    parser.add_argument("--output_dir", type=Path, default=Path("qat_result"))
    args = parser.parse_args(arguments)

    torch.manual_seed(0)
    model = trained(QatMobileNet(), args.model_dir / "qat_mobilenet.pth")
    val_loader, loss_fn = load_data(train=False), nn.CrossEntropyLoss()
    float_accuracy = accuracy = evaluate(model, val_loader, loss_fn)[0]
    print(f"float: top-1 {100 * float_accuracy:.2f} %")

    inputs = torch.randn([args.batch_size, 1, 8, 8])
    qat_processor = QatProcessor(model, inputs, bitwidth=8)
    if args.mode == "train":
        quantized_model = qat_processor.trainable_model()
        train(args, quantized_model)
        torch.save(quantized_model.state_dict(), args.model_dir / "trained.pth")
        deployable_model = qat_processor.to_deployable(quantized_model, args.output_dir)
        accuracy = evaluate(quantized_model, val_loader, loss_fn)[0]
        print(f"trained: top-1 {100 * accuracy:.2f} %")
    else:
        deployable_model = qat_processor.deployable_model(args.output_dir)
    deployed_accuracy = evaluate(deployable_model, val_loader, loss_fn)[0]
    print(f"deployable: top-1 {100 * deployed_accuracy:.2f} %")
    print(f"written: {qat_processor.export_onnx_model()}")
    return float_accuracy, accuracy, deployed_accuracy


if __name__ == "__main__":
    main()
