"""The craft: a pure library that turns a float ONNX model into a quantized one. No Celery, no SQLAlchemy, no HTTP."""

from worker.quantizer.later import load_later

load_later()
