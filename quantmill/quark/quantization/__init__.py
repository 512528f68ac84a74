"""Quark's room of this name: ``config``, and the quantizer."""
