"""Training logs: seconds per step, tokens/s, TFLOP/s, MFU, memory, and how each framework counts FLOPs."""
