"""Every operation of the suite by name; each has a file."""

from __future__ import annotations

from suites.kernels.operations import softmax
from suites.kernels.subject import Operation

OPERATIONS: dict[str, Operation] = {one.OPERATION.name: one.OPERATION for one in (softmax,)}
