"""Hugging Face's architectures: what their config classes compute, and what of a shape each has."""
