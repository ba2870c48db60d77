"""The options that every kernel is compiled with, for a GPU that is here or not."""

OPTIONS = {"enable_fp_fusion": True}
"""Multiplications and additions are fused, as in PyTorch's own kernels; Triton's default changes at 3.10."""
