"""Recipes other than static quantization: how a plan is made and written where activations are not calibrated."""
