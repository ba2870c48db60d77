"""Capture one step from PyTorch as one graph of core aten operators, and evaluate it in float64."""
