"""The front desk: HTTP, persistence and contracts. Runs without torch and onnxruntime installed."""
