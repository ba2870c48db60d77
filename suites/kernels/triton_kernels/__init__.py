"""Our own Triton kernels, one readable file an operation."""
