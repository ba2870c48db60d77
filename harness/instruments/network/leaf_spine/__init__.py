"""A leaf-spine fabric as numbers, and a simulator of collectives over it by flows."""
