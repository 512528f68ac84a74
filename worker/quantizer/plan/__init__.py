"""The QuantizationPlan: which tensor gets which quantizer. Targets are rules on the plan."""
