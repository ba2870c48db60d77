"""Few parameters that are trained next to a frozen model."""
