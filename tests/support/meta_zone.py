"""A zone of Meta's training cluster, for tests of routing and of the simulator."""

from __future__ import annotations

from harness.instruments.network.clos import Clos

NIC_B_per_s = 400e9 / 8  # 400 Gbit/s per GPU: Gangidi et al., SIGCOMM 2024, doi 10.1145/3651890.3672233


def meta_zone(capacity: float = 1.0, failed: tuple[tuple[int, int], ...] = ()) -> Clos:
    """Return one zone of 3,072 GPUs: 192 racks of two hosts with 8 GPUs each, 16 uplinks per rack.

    Racks and zone: The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3.1. `capacity` is the capacity of
    a rack's uplinks over that of its NICs: 1 does not block; 2 is what Gangidi et al. installed for a time.
    """
    return Clos(192, 16, 16, NIC_B_per_s, capacity * NIC_B_per_s, failed)
