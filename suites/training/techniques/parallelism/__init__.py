"""How ranks share a step: data, layers, sequences, experts, states, and what they send one another."""
