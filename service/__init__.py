"""The API server: HTTP, persistence and contracts. Runs without torch and onnxruntime installed."""
