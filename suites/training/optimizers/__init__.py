"""Optimizers, and the block-wise quantization of their states."""
