"""The account of transformers' own model code: a step's tensors in the order in which they come and go."""
