"""The workloads of the packing suite. Its import needs no torch."""

from dataclasses import dataclass

from harness.bounds import PositiveInt


@dataclass(frozen=True, slots=True)
class Workload:
    """Documents to be packed into sequences."""

    documents: PositiveInt
    seq_len: PositiveInt  # tokens
    source: str = ""
