"""The workload of the claims in tests/harness/claims/test_claims.py."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class Workload:
    num_hidden_layers: int
    optimizer: str
    bias: bool = False
    learning_rate: float = 1e-3
    ranks: int = 2
    device_memory_B: float
    source: str
