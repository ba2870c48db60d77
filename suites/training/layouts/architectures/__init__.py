"""What the architectures of transformers have besides the sizes that all share, by model_type.

Each function takes transformers' own config object. A test compares each architecture's parameters with those
of transformers' own model.
"""
