"""What to run first within a budget: `preset=gpu`, and `suite=all budget_min=60`, which is `preset=host`."""
