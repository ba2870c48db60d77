"""Host memory of offloaded states: FSDP2's by a model's tensors, DeepSpeed's by what others measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.instruments.transformer import TransformerShape
from harness.records import Reading
from suites.published import memory_published
from suites.published.memory_published import ERROR, METRIC
from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.states import all_layers_of, deepspeed_host_B, host_B, power_of_two
from suites.training.models.model import Transformer
from suites.training.workload import Workload

LLAMA = TransformerShape(
    num_hidden_layers=3, hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=16,
    intermediate_size=224, vocab_size=1000,
)  # fmt: skip
OFFLOADED = Training(seq_len=128, program="torchtitan", offload="optimizer")
FIRST = np.array([0])


@pytest.mark.parametrize(("ranks", "tied"), [(1, False), (4, False), (8, True)])
def test_fsdp2_pins_a_block_per_tensor_and_torch_rounds_each_up(ranks: int, tied: bool):
    shape = replace(LLAMA, tie_word_embeddings=tied)
    workload = Workload(
        num_hidden_layers=3, hidden_size=96, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=224, vocab_size=1000, seq_len=128, tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.device("meta"):
        sizes = [one.numel() / ranks for one in Transformer(workload.shape).parameters()]
    expected_B = sum(2 * 2 ** int(np.ceil(np.log2(4 * size))) for size in sizes)
    layouts = Layouts.of([{"dp": ranks, "zero": 3}])
    layers = all_layers_of(shape, layouts, OFFLOADED, FIRST)
    found = host_B(shape, layouts, OFFLOADED, layers, FIRST)
    assert found.reserved[0] - found.pageable[0] == expected_B
    assert found.asked[0] == pytest.approx(16 * sum(sizes), rel=0.03)  # a padded vocabulary
    with_momentum = host_B(shape, layouts, replace(OFFLOADED, optimizer="sgd_momentum"), layers, FIRST)
    assert with_momentum.asked[0] == pytest.approx(12 / 16 * found.asked[0])
    assert not host_B(shape, layouts, replace(OFFLOADED, offload="none"), layers, FIRST).asked.any()


def test_stage_2_has_the_bytes_that_were_measured_per_parameter():
    """10 B after deepspeed.initialize and 8 B more in the first update: deepspeedai/DeepSpeed, issue 7693."""
    part = np.array([1.5e9])
    assert deepspeed_host_B(part, np.array([2]), False).asked[0] == (10 + 8) * 1.5e9
    assert deepspeed_host_B(part, np.array([3]), True).asked[0] == (4 + 2 + 4 + 8 + 2) * 1.5e9


def test_page_locked_blocks_are_rounded_up_one_by_one():
    of_2, of_3 = (deepspeed_host_B(np.array([1.5e9]), np.array([stage]), False) for stage in (2, 3))
    assert of_2.reserved[0] == 8 * 1.5e9 + 2**33 + 2**32 + 2**33  # 6, 3 and 6 GB
    assert of_3.reserved[0] == 12 * 1.5e9 + 2**32 + 2**32 + 2**31  # 3 GB, and sub-groups of 4 and 2 GB
    assert list(power_of_two(np.array([0.0, 1.0, 3.0, 4.0]))) == [0, 1, 4, 4]


@pytest.mark.parametrize(
    ("fields", "published_B", "error"),
    [
        ({"parameters": 2851598336, "zero_stage": 2}, 71e9, -0.277),
        (
            {
                "parameters": 6738415616,
                "offload": "parameters",
                "host_part": "after_parameters",
                "published": 98.65,
                "unit": "GiB",
            },
            98.65 * 2**30,
            0.018,
        ),
        (
            {"parameters": 10**11, "dp_size": 8, "tp_size": 8, "nodes": 8, "offload": "parameters",
             "published": 220},
            220e9,
            0.136,
        ),
    ],
)  # fmt: skip
def test_a_reported_host_memory_is_compared_per_node(fields, published_B, error):
    given = {
        "program": "deepspeed", "kind": "host", "num_hidden_layers": 2, "hidden_size": 8, "seq_len": 8,
        "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8, "vocab_size": 8,
        "max_position_embeddings": 8, "micro_batch_size": 1, "published": 71, "architecture": "ampere",
    }  # fmt: skip
    subject = memory_published.build({**given, **fields}, 1)
    found = {
        (one.metric, one.method): one.value
        for one in memory_published.sample(subject)
        if isinstance(one, Reading)
    }
    assert found[METRIC, "published"] == published_B
    assert found[ERROR, "account"] == pytest.approx(error, abs=0.001)
    assert found[METRIC, "account"] == pytest.approx(published_B * (1 + found[ERROR, "account"]))
