"""The dry run against the allocator's own events of real steps on one device, whatever their techniques.

Also what it repeats in place of running it. Rows whose name begins with "long" run in `make long`.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from random_steps import assert_as_measured
from real_ranks import SMALL, sharded
from small_steps import CUDA, GPT, LLAMA, make_step
from torch import nn

from harness.instruments.memory.allocator import watch
from harness.instruments.memory.dry_run.fake_tensors import StorageLog, logged
from harness.instruments.memory.workspaces import host_workspace
from suites.training import quantization
from suites.training.dry_run.dry_run import dry_run
from suites.training.host_memory import SimulatedHost
from suites.training.techniques import build_step

SHORT_LLAMA, SHORT_GPT = replace(LLAMA, num_hidden_layers=2), replace(GPT, num_hidden_layers=2)
"""In each set-up the peak is at the place where it is with four layers."""

IN_LAYERS = replace(SHORT_LLAMA, seq_len=128, vocab_size=50)
FEW_TOKENS = replace(SHORT_LLAMA, seq_len=8)
BLOCKS = replace(SHORT_LLAMA, hidden_size=32, intermediate_size=96, vocab_size=20, seq_len=32)
"""Small: a CPU takes a second for 50 MFLOP in float8."""

GROUPED = replace(LLAMA, num_key_value_heads=2)
CLIPPED = replace(SHORT_GPT, gradient_accumulation_steps=2, max_grad_norm=1.0)

AUTOCAST, FLASH, FULL = "mixed_precision", "attention", "activation_checkpointing"
SELECTIVE = {"activation_checkpointing": {"mode": "selective"}}
BF16 = {"mixed_precision": {"gradients": "bf16"}}
FP32 = {"mixed_precision": {"gradients": "fp32"}}
IN_BACKWARD = "optimizer_in_backward"


def given(technique, **settings):
    return {technique: settings}


lora, adapter, loss, optimizer = (
    partial(given, name) for name in ("lora", "llama_adapter", "loss", "optimizer")
)

ROWS = {
    "clipping": (CLIPPED, [FLASH]),
    "bf16 gradients": (CLIPPED, [BF16]),
    "flash with dropout": (replace(SHORT_GPT, seq_len=128), [FLASH]),
    "per operation": (IN_LAYERS, [{FULL: {"mode": "per_op"}}, FLASH, AUTOCAST]),
    "fp32 gradients": (CLIPPED, [FP32, FLASH]),
    "float8": (BLOCKS, ["float8", AUTOCAST]),
    "every third layer": (replace(IN_LAYERS, num_hidden_layers=4), [{FULL: {"every": 3}}]),
    "loss recomputed in chunks": (SHORT_LLAMA, [loss(chunks=4, chunked="recompute")]),
    "logits kept": (SHORT_LLAMA, [loss(keep_logits="model"), AUTOCAST, FULL]),
    "fused loss, tied": (replace(SHORT_GPT, gradient_accumulation_steps=2), [loss(fused=True)]),
    "lora, nf4": (SHORT_LLAMA, [lora(base="nf4"), FLASH]),
    "lora": (SHORT_LLAMA, [lora(targets=["query", "value"], dropout=0.1), FLASH]),
    "adapter, autocast": (GROUPED, [adapter(version=2), AUTOCAST]),
    "dora, int8": (SHORT_LLAMA, [lora(dora=True, base="int8"), FULL]),
    "adafactor, foreach": (FEW_TOKENS, [optimizer(name="adafactor", impl="foreach")]),
    "adapter, nf4": (GROUPED, [adapter(version=2, base="nf4"), FLASH]),
    "8-bit moments, bf16": (FEW_TOKENS, ["bf16_states", optimizer(name="adamw_8bit")]),
    "in the backward pass, mixed": (FEW_TOKENS, ["lora", IN_BACKWARD, AUTOCAST]),
    "long, selective": (IN_LAYERS, [SELECTIVE]),
    "long, loss of chunks": (SHORT_LLAMA, [loss(chunks=4, chunked="loss", keep_logits="fp32"), AUTOCAST]),
    "long, dora, nf4, head": (SHORT_LLAMA, [lora(dora=True, base="nf4", targets=["value", "head"]), FLASH]),
    "long, adapter, repeated": (replace(GPT, num_hidden_layers=9), [adapter(start_layer=3, version=2)]),
    "long, muon": (FEW_TOKENS, [optimizer(name="muon")]),
}


@pytest.mark.parametrize("name", ROWS)
def test_as_measured(name):
    assert_as_measured(build_step(*ROWS[name]))


def test_a_parameter_without_gradient_gets_no_state():
    """As in a real step; the dry run's first step has gradients of zeros for all."""

    def with_unused(model, resources):
        model.unused = nn.Parameter(torch.zeros(700, 700, dtype=next(model.parameters()).dtype))
        model.frozen = nn.Parameter(torch.zeros(300, 300), requires_grad=False)
        return model

    step = make_step(SHORT_LLAMA, "bf16_grads")
    assert_as_measured(replace(step, wraps=(*step.wraps, with_unused)))


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


def test_without_prefetching_activations_do_not_grow_with_layers():
    def activations_B(layers, *techniques):
        sizes = {"num_hidden_layers": layers, "seq_len": 512, "max_position_embeddings": 512}
        workload = replace(SMALL, **sizes, gradient_accumulation_steps=1, optimizer="sgd_momentum")
        step = sharded([*techniques, AUTOCAST, FLASH], workload)
        return dry_run(step, CUDA, reserved=False).by_kind_B["activations"]

    assert activations_B(4) > 1.5 * activations_B(2)
    fewer_B, more_B = (activations_B(layers, "activation_offload") for layers in (2, 4))
    assert more_B == pytest.approx(fewer_B, abs=4096)


ON_FOUR = replace(SMALL, gradient_accumulation_steps=1, dp_size=4)


def test_on_cuda_the_device_has_no_states_and_a_copy_of_what_it_gathers():
    """A block's shards are copied up before they are gathered: a fourth of its bytes, in fp32."""
    large = replace(ON_FOUR, hidden_size=512, intermediate_size=1536, seq_len=8, micro_batch_size=1)
    on_host = dry_run(sharded([{"fsdp2": {"cpu_offload": True}}], large), CUDA, reserved=False)
    on_device = dry_run(sharded("fsdp2", large), CUDA, reserved=False)
    assert on_host.by_kind_B["optimizer_states"] < 20_000  # a counter per parameter, of 512 B
    shards_B = 4 * large.shape.parameters / 4
    assert on_device.by_kind_B["optimizer_states"] == pytest.approx(2 * shards_B, rel=0.01)
    gathered = [one for one in on_host.timeline.events if one.delta_B > 0 and one.stream == 1]
    copies_B = sum(one.delta_B for one in gathered if one.place.operation == "aten.empty.memory_format")
    assert copies_B >= 2 * shards_B  # in two passes at least


def allocated(step):
    run = dry_run(step, CUDA, full=True)
    return run.timeline.events, (run.peak_B, run.reserved_B, run.allocated_B)


@pytest.mark.parametrize(("at_once", "optimizer"), [(512, "adamw"), (640, "adamw_8bit")])
def test_a_slice_of_each_size_stands_for_all(at_once, optimizer, monkeypatch):
    """512 divides every matrix of the model, 640 leaves a shorter slice; the slow way runs every slice."""
    monkeypatch.setattr(quantization.slices, "__defaults__", (at_once,))
    step = build_step(replace(SHORT_LLAMA, optimizer=optimizer), [AUTOCAST, FULL, lora(rank=4, base="nf4")])
    short_events, short_B = allocated(step)
    monkeypatch.setattr(quantization, "torch_internals", SimpleNamespace(is_fake=lambda _: False))
    events, each_B = allocated(step)
    assert len(events) > 2 * len(short_events)
    assert each_B == short_B


def test_a_quantized_weight_of_several_slices_is_widened_whole(monkeypatch):
    """The values are those of one slice, so no slice is left out where tensors are real."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 96)
    whole = quantization.Int8Linear(layer).weight()
    monkeypatch.setattr(quantization, "SLICE", 640)
    assert torch.equal(quantization.Int8Linear(layer).weight(), whole)


def test_results_of_tensors_below_the_device_are_below_it_on_cuda_alone():
    for cuda in (True, False):
        log = StorageLog(computes_below=cuda)
        with logged(log):
            host = SimulatedHost(log, cuda)
            below = host.empty((1000,), torch.float32)
            assert host.holds(below)
            assert not log.ledger.events
            assert host.holds(below + 1) is cuda
