"""Algorithms at work on a calibrated network, one after another, each kept only if the network gets better."""
