"""What to run first on given GPUs within a budget: `preset=gpu`."""
