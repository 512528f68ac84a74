# %% [markdown]
# # Quantize a PyTorch module
#
# Open this file as a notebook in VS Code, PyCharm or Jupyter (`jupytext --to notebook`), or run it as a script.
# It trains a small CNN on the 8 x 8 digits of scikit-learn, quantizes it with two presets, and compares them.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import quantmill.torch

torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
labels = torch.from_numpy(digits.target)
train, calibration, evaluation = (
    DataLoader(TensorDataset(images[part], labels[part]), batch_size=64)
    for part in (slice(0, 1000), slice(1000, 1200), slice(1200, None))
)

# %% [markdown]
# ## Train the float model

# %%
module = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
for _ in range(5):
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

# %% [markdown]
# ## Quantize it
#
# The module becomes ONNX, the ranges come from the calibration data, and both models are measured on the evaluation
# data. The gate fails the result if the top-1 accuracy drops by more than one point. `x86_without_vnni` gives weights 7
# bits, so that x86 CPUs without VNNI do not overflow.

# %%
gate = {"gate": {"metric": "top1", "max_drop": 1.0}}
result = quantmill.torch.quantize(
    module,
    images[:1],
    calibration,
    {"preset": "int8", "target_options": {"x86_without_vnni": True}, "evaluation": gate},
    evaluation_loader=evaluation,
    output="digits-int8.onnx",
)
result  # noqa: B018 - a notebook shows it

# %% [markdown]
# ## Read the report

# %%
report = result.report
for finding in report.findings:
    print(finding.severity, finding.message)
for layer in report.layers[:3]:
    print(layer.name, layer.op, layer.error_percent, "% of all error")
for advice in report.advice:
    print(advice.message, advice.config)

# %% [markdown]
# ## Compare with 4-bit weights

# %%
smaller = quantmill.torch.quantize(
    module,
    images[:1],
    calibration,
    {"preset": "w4a8", "evaluation": gate},
    evaluation_loader=evaluation,
    output="digits-w4a8.onnx",
)
for one in (result, smaller):
    print(
        one.onnx_path,
        one.report.verdict,
        one.report.quantized.metrics["top1"],
        one.report.quantized.size_bytes,
        "bytes",
    )

# %% [markdown]
# ## Run the quantized model

# %%
quantized = result.load()
predictions = quantized(images[1200:]).argmax(1)
print((predictions == labels[1200:]).float().mean().item())
