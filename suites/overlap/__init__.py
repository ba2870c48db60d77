"""The overlap suite (Triton-distributed): computation that runs while its data is communicated."""
