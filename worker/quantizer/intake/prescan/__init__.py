"""A look at the protobuf of an ONNX file before a parser builds objects of it: bounded in time, and in memory."""
