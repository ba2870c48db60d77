"""Rates of GPUs, kernels and links, with the constants that they were fitted to."""
