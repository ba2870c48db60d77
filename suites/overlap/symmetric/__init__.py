"""Kernels on symmetric memory, one readable file each; `primitives` has the operations that they share."""
