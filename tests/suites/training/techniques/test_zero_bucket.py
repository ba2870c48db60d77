"""DeepSpeed's bucket of gradients: at most the model's by default, and whole where it is larger."""

from types import SimpleNamespace

import pytest

from suites.training.declared import ZeROSettings
from suites.training.techniques.zero import config


@pytest.mark.parametrize(("given", "elements"), [
    (None, 1000), (500_000_000, 1000), (40, 40), (2 * 10**9, 2 * 10**9),
])  # fmt: skip
def test_a_bucket_above_the_default_is_allocated_whole(given, elements):
    """deepspeed 0.19.8, runtime/zero/stage3.py: torch.empty(reduce_bucket_size), whatever the model."""
    sizes = SimpleNamespace(block=100, largest=50, all=1000, ranks=2)
    workload = SimpleNamespace(micro_batch_size=1, max_grad_norm=None, gradient_accumulation_steps=1)
    made = config(ZeROSettings(reduce_bucket=given), "fp32", workload, sizes)["zero_optimization"]
    assert (made["reduce_bucket_size"], made["allgather_bucket_size"]) == (elements, 1000)
