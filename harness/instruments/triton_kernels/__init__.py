"""Triton kernels: launched, interpreted where there is no GPU, and compiled for GPUs that are not there."""
