"""The optimizations of the suites fabric and fabric_flows, which are those of any leaf-spine fabric."""

from __future__ import annotations

from harness.instruments.network.routing import central_te, e_ecmp, path_pinning, qp_scaling

__all__ = ["central_te", "e_ecmp", "path_pinning", "qp_scaling"]
