"""Makes the example of the dashboard's page for a new job: ``python tools/make_example.py [FOLDER]``.

Trains a small float CNN on scikit-learn's digits as ``quantmill demo`` trains its larger one (same code, same split,
same seed, one thread), and writes ``digits.onnx``, ``calibration.npz`` and ``evaluation.npz`` into FOLDER, by default
``service/dashboard/examples``, where they are shipped with the package: the service itself loads neither torch nor
scikit-learn. The same versions of torch and numpy on the same kind of CPU give the same bytes; other versions give a
model that is as good. Needs ``pip install 'quantmill[demo]'``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch import nn

from worker.commands.demo_model import main, separable

FOLDER = Path(__file__).resolve().parent.parent / "service" / "dashboard" / "examples"


def build() -> nn.Sequential:
    """The demo's network with fewer channels, about 15 thousand parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        separable(16, 40, 1),
        separable(40, 72, 2),
        separable(72, 128, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    main(folder, build)
