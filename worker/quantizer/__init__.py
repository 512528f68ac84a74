"""The craft: a pure library that turns a float ONNX model into a quantized one. No Celery, no SQLAlchemy, no HTTP."""

import os

from worker.quantizer.later import load_later

# onnxruntime's own builds would tell their maker of the models that they run, from a thread that they start at once.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
load_later()
