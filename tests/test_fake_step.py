"""The dry run against the allocator's own events of real steps, its short way against the full one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import CUDA, GPT, HOST, LLAMA, LLAMA_7B, make_step
from torch import nn

from harness.instruments.memory.allocator import watch
from harness.instruments.memory.cpu_op_workspace import host_workspace
from harness.instruments.memory.fake_tensors import StorageLog, logged
from harness.records import Note, Reading, Unavailable
from suites import memory
from suites.memory.measure import losses, measure_peak
from suites.memory.subject import Subject
from suites.training.dry_run import Device, dry_run, trace
from suites.training.host_memory import HostMemory
from suites.training.model import Block, Transformer
from suites.training.optimizers import make_torch_optimizer
from suites.training.techniques import build_step, mixed_precision
from suites.training.trainer import CPU, Trainer, build_model
from suites.training.workload import Resources

pytestmark = pytest.mark.usefixtures("frozen")

ALLOWED = 5e-4
"""Relative. What is missing are numbers that torch makes tensors of: 8 bytes each."""

SHORT_LLAMA, SHORT_GPT = replace(LLAMA, num_hidden_layers=2), replace(GPT, num_hidden_layers=2)
"""Walked layer by layer; in each set-up the peak is at the place where it is with four layers."""

SET_UPS = {
    "llama": make_step(LLAMA),
    "gpt": make_step(GPT),
    "sgd": make_step(SHORT_LLAMA, optimizer="sgd_momentum", micro_batch_size=1),
    "for_loop": make_step(SHORT_LLAMA, optimizer_impl="for_loop"),
    "foreach": make_step(SHORT_LLAMA, "full", optimizer_impl="foreach"),
    "fused": make_step(SHORT_LLAMA, optimizer_impl="fused"),
    "accumulation": make_step(SHORT_GPT, gradient_accumulation_steps=3),
    "clipping": make_step(GPT, "flash", gradient_accumulation_steps=2, max_grad_norm=1.0),
    "grouped queries": make_step(SHORT_LLAMA, "flash", num_key_value_heads=2),
    "odd length, batch 16": make_step(
        SHORT_LLAMA, "flash", seq_len=37, micro_batch_size=16, tie_word_embeddings=True
    ),
    "flash with dropout": make_step(SHORT_GPT, "flash", seq_len=128),
    "full checkpointing": make_step(GPT, "full", seq_len=128, vocab_size=50),
    "selective checkpointing": make_step(SHORT_LLAMA, "selective", seq_len=128, vocab_size=50),
    "autocast": make_step(SHORT_LLAMA, "autocast flash", seq_len=128, vocab_size=50),
    "autocast, explicit": make_step(SHORT_GPT, "autocast selective"),
    "bf16 gradients": make_step(GPT, "bf16_grads", gradient_accumulation_steps=2, max_grad_norm=1.0),
    "bf16, checkpointed": make_step(LLAMA, "bf16_grads flash full", gradient_accumulation_steps=2),
    "fp32 gradients": make_step(LLAMA, "fp32_grads flash", gradient_accumulation_steps=2, max_grad_norm=1.0),
    "one layer": make_step(LLAMA, num_hidden_layers=1),
}


def assert_as_measured(step, found=None):
    found = found or dry_run(step, HOST)
    for peak in measure_peak(step).peaks:
        assert found.peak_B == pytest.approx(peak.live_B, rel=ALLOWED)


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


workloads = st.builds(
    lambda num_attention_heads, groups, size, **rest: replace(
        GPT,
        num_key_value_heads=num_attention_heads,
        num_attention_heads=num_attention_heads * groups,
        hidden_size=num_attention_heads * groups * size,
        **rest,
    ),
    num_attention_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    size=st.sampled_from([8, 16, 24]),
    num_hidden_layers=st.integers(1, 4),
    intermediate_size=st.integers(16, 200),
    vocab_size=st.integers(30, 700),
    micro_batch_size=st.integers(1, 5),
    seq_len=st.integers(3, 90),
    norm=st.sampled_from(["rms", "layer"]),
    mlp=st.sampled_from(["swiglu", "gelu"]),
    position=st.sampled_from(["rotary", "learned"]),
    tie_word_embeddings=st.booleans(),
    bias=st.booleans(),
    dropout=st.sampled_from([0.0, 0.2]),
    optimizer=st.sampled_from(["adamw", "sgd_momentum"]),
    optimizer_impl=st.sampled_from(["default", "for_loop", "foreach", "fused"]),
    gradient_accumulation_steps=st.integers(1, 2),
    max_grad_norm=st.sampled_from([None, 0.5]),
)
TECHNIQUES = st.tuples(
    st.sampled_from(["", "flash"]),
    st.sampled_from(["", "full", "selective"]),
    st.sampled_from(["", "autocast", "bf16_grads", "fp32_grads"]),
)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(workloads, TECHNIQUES)
def test_as_measured_for_random_set_ups(workload, techniques):
    assert_as_measured(make_step(workload, " ".join(techniques)))


@settings(max_examples=6, deadline=None, derandomize=True)
@given(workloads, TECHNIQUES, st.integers(4, 6), st.sampled_from([HOST, CUDA]))
def test_extrapolated_layers_equal_a_full_trace(workload, techniques, num_hidden_layers, device):
    step = make_step(workload, " ".join(techniques), num_hidden_layers=num_hidden_layers)
    assert dry_run(step, device) == dry_run(step, device, full=True)


@pytest.mark.parametrize("techniques", ["", "flash bf16_grads full"])
def test_extrapolated_layers_equal_a_full_trace_on_7b(techniques):
    """With fewer layers; the peak is at the place where it is with 32. No operation of that size is run."""
    step, host = make_step(LLAMA_7B, techniques, num_hidden_layers=9), Device()
    assert dry_run(step, host) == dry_run(step, host, full=True)


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


def test_bytes_a_parameter_of_each_precision():
    """ZeRO's 16 and Megatron's 18 bytes a parameter, as states that a step really holds."""
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

    log = StorageLog(host_workspace)
    with logged(log):
        run(log.enter_phase)
    found_B = max(m.total_B for place, m in log.ledger.largest().items() if place.phase == "backward")
    with watch(torch.device("cpu")) as allocator:
        run(allocator.mark)
    assert found_B == pytest.approx(allocator.peaks[-1].live_B, abs=256)


def a_subject(step, device="host"):
    return Subject(step, device_memory_B=80e9, measurable=True, simulated_device=device)


def test_on_a_host_with_cuda_its_operations_are_run(monkeypatch):
    """`measured` runs there, so the dry run of "host" must be the dry run of "cuda"."""
    step = make_step(LLAMA, "flash", num_hidden_layers=1)
    here, there = memory.peak_of_rank(a_subject(step)), memory.peak_of_rank(a_subject(step, "cuda"))
    assert here.peak_B != there.peak_B
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert memory.peak_of_rank(a_subject(step)) == there
    assert memory.conditions(a_subject(step))["device"] == "cuda"


@pytest.mark.parametrize(("device", "compared"), [("host", True), ("cuda", False)])
def test_cuda_runs_are_not_compared_with_a_cpu(monkeypatch, device, compared):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = list(memory.sample(a_subject(make_step(LLAMA, num_hidden_layers=1), device)))
    assert any(isinstance(one, Reading) and one.method == "measured" for one in said)
    assert any(isinstance(one, Reading) and one.metric == "relative_error" for one in said) == compared
    assert any(isinstance(one, Note) and one.text.startswith("relative_error: ") for one in said) != compared


def test_a_step_that_cannot_be_traced_gives_a_reason():
    with pytest.raises(Unavailable, match="because"):
        dry_run(replace(make_step(LLAMA), no_dry_run="because"))


def test_fake_tensors_take_no_memory_and_leave_torch_as_it_was():
    before = torch.get_rng_state, torch.UntypedStorage.resize_, torch.Tensor.softmax
    dry_run(make_step(LLAMA, "full", num_hidden_layers=9), CUDA)
    assert (torch.get_rng_state, torch.UntypedStorage.resize_, torch.Tensor.softmax) == before
    assert torch.get_default_dtype() == torch.float32


def activations_at_the_loss(step, num_hidden_layers: int) -> int:
    moments = trace(step, CUDA, num_hidden_layers)
    (moment,) = [found for place, found in moments.items() if "nll_loss_forward" in place.operation]
    return moment.by_kind_B[3]


def test_cuda_keeps_the_activations_of_a_layer_that_korthikanti_count():
    """arXiv 2205.05198, equation 1: s·b·h·(34 + 5·a·s/h) bytes a layer, in bf16 with dropout."""
    b, s, h, a = 4, 256, 512, 8
    step = make_step(
        GPT,
        "bf16_grads",
        hidden_size=h,
        num_attention_heads=a,
        num_key_value_heads=a,
        intermediate_size=4 * h,
        micro_batch_size=b,
        seq_len=s,
    )
    a_layer = activations_at_the_loss(step, 2) - activations_at_the_loss(step, 1)
    assert a_layer == pytest.approx(s * b * h * (34 + 5 * a * s / h), rel=5e-3)
    flash = make_step(step.workload, "bf16_grads flash")
    assert activations_at_the_loss(flash, 2) - activations_at_the_loss(flash, 1) == pytest.approx(
        s * b * h * 34 + 4 * b * a * s, rel=3e-2
    )


@pytest.mark.parametrize(
    "techniques",
    ["flash", "full", "selective", "autocast", "bf16_grads", "fp32_grads", "autocast flash full"],
)
def test_losses_are_the_baselines(techniques):
    workload = replace(
        LLAMA, num_hidden_layers=2, num_key_value_heads=2, gradient_accumulation_steps=2, max_grad_norm=1.0
    )
    step = make_step(workload, techniques)
    ours, theirs = losses(step), losses(make_step(workload))
    assert ours[0] != ours[-1]
    assert ours == pytest.approx(theirs, rel=step.contract.relative)


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="mode='some' is none of full, selective"):
        build_step(LLAMA, [{"activation_checkpointing": {"mode": "some"}}])
    with pytest.raises(ValueError, match="gradients='fp8' is none of None, bf16, fp32"):
        build_step(LLAMA, [{"mixed_precision": {"gradients": "fp8"}}])


def growing(step, num_hidden_layers):
    """Return a step in which each layer's MLP is wider than the last one's."""
    model = Transformer(step.workload.shape, step.attention)
    model.blocks = nn.ModuleList(
        Block(replace(step.workload.shape, intermediate_size=64 * (1 + index)), step.attention)
        for index in range(num_hidden_layers)
    )
    return model


def test_layers_that_are_not_alike_are_traced_one_by_one():
    step = replace(make_step(LLAMA, optimizer="sgd_momentum"), make_model=growing)
    found = dry_run(step, HOST)
    assert found == dry_run(step, HOST, full=True)
    assert_as_measured(step, found)


def test_what_precision_holds_is_reported():
    for held in ("autocast", "bf16_grads", "fp32_grads"):
        assert any("fp32" in note for note in make_step(LLAMA, held).notes)


@pytest.mark.parametrize("make", [mixed_precision.NarrowGradients, mixed_precision.WideGradients])
def test_updates_too_small_for_bf16_gather_in_the_master(make):
    workload, gradient = replace(LLAMA, optimizer="sgd_momentum"), 0.0078125  # exact in bf16
    weight, plain = nn.Parameter(torch.ones(4, dtype=torch.bfloat16)), nn.Parameter(torch.ones(4))
    ours = make(nn.ParameterList([weight]), workload, Resources(CPU, HostMemory(CPU)))
    reference = make_torch_optimizer([plain], workload)
    for _ in range(30):
        (weight * gradient).sum().backward()
        ours.step()
        ours.zero_grad()
        plain.grad = torch.full((4,), gradient)
        reference.step()
    torch.testing.assert_close(ours.masters[0].data, plain.data)
    assert torch.equal(weight.data, plain.data.bfloat16())
    assert (weight < 1).all()
