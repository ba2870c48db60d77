"""Several connections, which a hash of addresses cannot tell apart."""

from harness.instruments.network.leaf_spine.routing_optimizations import Settings
from harness.instruments.network.leaf_spine.routing_optimizations import qp_scaling as apply

__all__ = ["Settings", "apply"]
