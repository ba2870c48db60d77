"""E-ECMP: several connections that the hash distinguishes, in turn or split (Meta, SIGCOMM 2024)."""

from harness.instruments.network.leaf_spine.routing import Settings
from harness.instruments.network.leaf_spine.routing import e_ecmp as apply

__all__ = ["Settings", "apply"]
