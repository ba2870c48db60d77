"""E-ECMP: several connections that the hash distinguishes, in turn or split (Meta, SIGCOMM 2024)."""

from harness.instruments.network.leaf_spine.routing_optimizations import Settings
from harness.instruments.network.leaf_spine.routing_optimizations import e_ecmp as apply

__all__ = ["Settings", "apply"]
