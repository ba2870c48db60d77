"""What becomes of activations between the forward and the backward pass."""
