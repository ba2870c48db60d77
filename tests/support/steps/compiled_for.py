"""For which GPUs the tests of Triton's kernels compile them: each target, and each type for both makers."""

from harness.instruments.triton_kernels.targets import TARGETS

EVERY_TARGET = [
    *(("bf16", target) for target in TARGETS),
    *(("fp32", one) for one in ("sm_80", "sm_90", "gfx942")),
]
"""A target's own instructions show in one type, a type's own arithmetic on one target a maker."""
