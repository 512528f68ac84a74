"""Cross-layer equalization: scale moves between neighbouring layers, channel by channel, until one grid fits all
channels of a weight.
"""
