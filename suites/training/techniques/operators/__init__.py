"""How the operators of the model are computed."""
