"""What tests of sharded steps share: workloads, a dry run and a real step of one rank."""

from dataclasses import replace

import torch

from harness.instruments.distributed.fake_process_group import fake_process_group
from suites.memory.live_bytes import measure_peak
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.techniques import build_step
from suites.training.workload import Workload

CPU = torch.device("cpu")

TINY = Workload(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=56,
    vocab_size=101,
    max_position_embeddings=32,
    micro_batch_size=2,
    seq_len=17,
    optimizer="sgd_momentum",  # AdamW would hide a gradient of the wrong scale
    optimizer_impl="for_loop",
    gradient_accumulation_steps=2,
    dp_size=2,
    tp_size=2,
)
GPT = replace(
    TINY,
    num_key_value_heads=4,
    norm="layer",
    mlp="gelu",
    position="learned",
    tie_word_embeddings=True,
    bias=True,
    optimizer="adamw",
    gradient_accumulation_steps=1,
    max_grad_norm=0.5,
)
"""The other architecture and set-up."""

CLIPPED = replace(TINY, max_grad_norm=0.05)
"""Less than the gradient's norm in each step, and by an optimizer that does not hide it."""

SMALL = replace(
    TINY,
    num_hidden_layers=3,
    hidden_size=128,
    intermediate_size=336,
    vocab_size=1000,
    seq_len=64,
    max_position_embeddings=64,
    optimizer="adamw",
)
"""Large enough that what a dry run misses shows as a share of the peak."""


HOST = Device("host", measured=True)


def sharded(techniques, workload, seed=3):
    return build_step(workload, [techniques] if isinstance(techniques, str) else techniques, seed)


def dry_and_measured(step, full=True, steady_steps=1, rank=0):
    """Return the dry run's peak, and the bytes of real tensors in the last of those steps, of one rank."""
    dry = dry_run(step, HOST, full, rank=rank)
    with fake_process_group(step.ranks, rank):
        measured = measure_peak(step, CPU, steady_steps=steady_steps)
    return dry, measured.peaks[-1].live_B
