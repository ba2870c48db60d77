"""Training logs of frameworks: seconds per step, tokens/s, TFLOP/s, MFU and memory, and how each counts FLOPs."""
