"""Our own Triton kernels, one readable file per operation."""
