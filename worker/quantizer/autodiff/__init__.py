"""ONNX operators in torch, with derivatives, and the grids of the plan among them."""
