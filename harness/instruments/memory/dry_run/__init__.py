"""What a training step on fake tensors needs: layers repeated, operations simulated, lines found."""
