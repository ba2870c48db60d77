"""The dry run against the allocator's own events of real steps, its short way against the full one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from random_steps import TECHNIQUES, WORKLOADS, assert_as_measured
from small_steps import CUDA, GPT, HOST, LLAMA, make_step
from torch import nn

from harness.instruments.memory.allocator import watch
from harness.instruments.memory.dry_run.fake_tensors import StorageLog, logged
from harness.instruments.memory.workspaces import host_workspace
from harness.records import Unavailable
from suites.training.dry_run.dry_run import dry_run
from suites.training.trainer import Trainer, build_model

SHORT_LLAMA, SHORT_GPT = replace(LLAMA, num_hidden_layers=2), replace(GPT, num_hidden_layers=2)
"""Walked layer by layer; in each set-up the peak is at the place where it is with four layers."""

SET_UPS = {
    "llama": make_step(SHORT_LLAMA),
    "gpt": make_step(SHORT_GPT),
    "sgd": make_step(SHORT_LLAMA, optimizer="sgd_momentum", micro_batch_size=1),
    "for_loop": make_step(SHORT_LLAMA, optimizer_impl="for_loop"),
    "foreach": make_step(SHORT_LLAMA, "full", optimizer_impl="foreach"),
    "fused": make_step(SHORT_LLAMA, optimizer_impl="fused"),
    "accumulation": make_step(SHORT_GPT, gradient_accumulation_steps=3),
    "clipping": make_step(SHORT_GPT, "flash", gradient_accumulation_steps=2, max_grad_norm=1.0),
    "grouped queries": make_step(SHORT_LLAMA, "flash", num_key_value_heads=2),
    "odd length, batch 16": make_step(
        SHORT_LLAMA, "flash", seq_len=37, micro_batch_size=16, tie_word_embeddings=True
    ),
    "flash with dropout": make_step(SHORT_GPT, "flash", seq_len=128),
    "full checkpointing": make_step(SHORT_GPT, "full", seq_len=128, vocab_size=50),
    "selective checkpointing": make_step(SHORT_LLAMA, "selective", seq_len=128, vocab_size=50),
    "autocast": make_step(SHORT_LLAMA, "autocast flash", seq_len=128, vocab_size=50),
    "autocast, explicit": make_step(SHORT_GPT, "autocast selective"),
    "bf16 gradients": make_step(SHORT_GPT, "bf16_grads", gradient_accumulation_steps=2, max_grad_norm=1.0),
    "bf16, checkpointed": make_step(SHORT_LLAMA, "bf16_grads flash full", gradient_accumulation_steps=2),
    "fp32 gradients": make_step(
        SHORT_LLAMA, "fp32_grads flash", gradient_accumulation_steps=2, max_grad_norm=1.0
    ),
    "one layer": make_step(LLAMA, num_hidden_layers=1),
}


@pytest.mark.parametrize("name", SET_UPS)
def test_as_measured(name):
    assert_as_measured(SET_UPS[name])


@pytest.mark.parametrize("techniques", ["", "bf16_grads"])
def test_a_parameter_without_gradient_gets_no_state(techniques):
    """As in a real step; the dry run's first step has gradients of zeros for all."""

    def with_unused(model, resources):
        model.unused = nn.Parameter(torch.zeros(700, 700, dtype=next(model.parameters()).dtype))
        model.frozen = nn.Parameter(torch.zeros(300, 300), requires_grad=False)
        return model

    step = make_step(SHORT_LLAMA, techniques)
    assert_as_measured(replace(step, wraps=(*step.wraps, with_unused)))


@settings(max_examples=3, deadline=None, derandomize=True)
@given(WORKLOADS, TECHNIQUES)
def test_as_measured_for_random_set_ups(workload, techniques):
    assert_as_measured(make_step(workload, " ".join(techniques)))


def test_kinds_sum_to_the_peak_and_are_what_they_are():
    step = make_step(
        LLAMA, "flash", micro_batch_size=1, seq_len=4
    )  # few activations: the peak is in the optimizer
    found = dry_run(step, HOST)
    model = build_model(step)
    weights_B = sum(one.nbytes for one in model.parameters())
    buffers_B = sum(one.nbytes for one in model.buffers())
    assert sum(found.by_kind_B.values()) == found.peak_B
    assert found.place.phase == "optimizer"
    assert found.by_kind_B["parameters"] == weights_B + buffers_B
    assert found.by_kind_B["gradients"] == weights_B
    assert found.by_kind_B["optimizer_states"] == 2 * weights_B + 4 * len(list(model.parameters()))
    assert found.by_kind_B["communication"] == 0


def test_bytes_per_parameter_of_each_precision():
    """ZeRO's 16 and Megatron's 18 bytes per parameter, as states that a step really holds."""
    for techniques, expected in (("bf16_grads", 16), ("fp32_grads", 18), ("autocast", 16)):
        step = make_step(
            SHORT_LLAMA,
            f"flash {techniques}",
            micro_batch_size=1,
            seq_len=2,
            hidden_size=256,
            intermediate_size=688,
        )
        found, model = dry_run(step, HOST), build_model(step)
        states = sum(found.by_kind_B[kind] for kind in ("parameters", "gradients", "optimizer_states"))
        buffers_B = sum(one.nbytes for one in model.buffers())
        weights = sum(one.numel() for one in model.parameters())
        assert (states - buffers_B) / weights == pytest.approx(expected, rel=1e-3)


def test_as_torchs_own_tracker():
    """MemTracker of torch, where it can follow: one micro-batch, no checkpointing."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    step = make_step(SHORT_LLAMA)
    with FakeTensorMode():
        trainer = Trainer(step)
        tracker = MemTracker()
        tracker.track_external(trainer.model, trainer.optimizer.inner)
        with tracker:
            trainer.train_step()
            tracker.reset_mod_stats()
            trainer.train_step()
    (by_kind,) = tracker.get_tracker_snapshot("peak").values()
    assert dry_run(step, HOST).peak_B == pytest.approx(by_kind["Total"], rel=1e-4)


class Sums(torch.autograd.Function):
    """A derivative in Python that adds out of place, as it does in a real run."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return (gradient * 2 + gradient).neg()


def fan_in(x):
    return (x * 2).sin() + (x * 3).cos() + (x * 5).tanh()


GRADIENTS = {
    "three summands": fan_in,
    "columns, each with a gradient as large as all": lambda x: x[:, 0].sin() + x[:, 1].cos() + x[:, 2].tanh(),
    "of an expanded tensor": lambda x: x.sum() + x.cumsum(0).sum() + x.sum(),
    "a slice that outlives the rest": lambda x: fan_in(torch.cat([x, x])[: len(x)]) + x,
    "two users of one gradient": lambda x: (x + x.view(-1).view_as(x)) * x.sin(),
    "index": lambda x: x[torch.arange(3)].exp().sum() + x.sum(),
    "gather": lambda x: x.gather(0, torch.zeros(5, 256, dtype=torch.long)).exp().sum() + x.sin().sum(),
    "index_select": lambda x: x.index_select(0, torch.arange(3)).exp().sum() + x.sin().sum(),
    "in Python": lambda x: Sums.apply(x).sin(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_added_as_in_a_real_run(name):
    """A backward pass alone, so that nothing else can be the peak."""

    def run(mark):
        x = torch.ones(64, 256, requires_grad=True)
        y = GRADIENTS[name](x.mul(1.5)).sum()
        mark("backward")
        y.backward()

    log, starts = StorageLog(host_workspace), []
    with logged(log):
        run(lambda phase: starts.append(len(log.ledger.events)))
    found_B = log.ledger.timeline(*starts).peak().total_B
    with watch(torch.device("cpu")) as allocator:
        run(allocator.mark)
    assert found_B == pytest.approx(allocator.peaks[-1].live_B, abs=256)


def test_a_step_that_cannot_be_traced_gives_a_reason():
    with pytest.raises(Unavailable, match="because"):
        dry_run(replace(make_step(LLAMA), no_dry_run="because"))


def test_fake_tensors_take_no_memory_and_leave_torch_as_it_was():
    before = torch.get_rng_state, torch.UntypedStorage.resize_, torch.Tensor.softmax
    dry_run(make_step(LLAMA, "full", num_hidden_layers=1), CUDA)
    assert (torch.get_rng_state, torch.UntypedStorage.resize_, torch.Tensor.softmax) == before
    assert torch.get_default_dtype() == torch.float32
