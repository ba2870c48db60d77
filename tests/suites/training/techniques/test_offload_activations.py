"""Activations put away and brought back: the same gradients, bytes as counted, and less device memory."""

import ctypes
import gc
from dataclasses import replace
from functools import cache, partial
from unittest.mock import MagicMock

import pytest
import torch
from small_steps import CUDA, GPT, LLAMA
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from harness.instruments.memory.allocator import watch
from suites.offload.on_rank import TransferCounter
from suites.training.declared import ActivationCheckpointingSettings, ActivationOffloadSettings
from suites.training.dry_run.dry_run import dry_run
from suites.training.host_memory import Copy, Resources, SideStream
from suites.training.host_memory import HostMemory as Host
from suites.training.models.model import Transformer
from suites.training.techniques import activation_checkpointing, build_step
from suites.training.techniques import activation_offload as activation_hooks

CPU = torch.device("cpu")
HOWS = ("recomputed", "offloaded", "offloaded_ahead")
B, T, D, F, LAYERS = 2, 64, 64, 176, 5
SHAPE = replace(LLAMA, num_hidden_layers=LAYERS, num_key_value_heads=2, vocab_size=61, seq_len=T).shape
OTHER = replace(GPT, num_hidden_layers=LAYERS, intermediate_size=F, vocab_size=61, dropout=0.0).shape
BLOCK_B = {"fp32": B * T * 4 * (10 * D + 4 * F), "bf16": B * T * (34 * D + 8 * F)}
"""What a block of SHAPE saves, storages below 4 KiB, weights and rotary tables not counted.

Elements per token: of each norm its input, normed input and result (3 D, twice), queries, keys, values and
mixed values (4 D), of the gated layer gate, up, activation and product (4 F); 4 bytes each. Under autocast
inputs and normed inputs have 4 bytes (4 D), all else 2; a norm's result is cast for each of its 3 or 2
products (5 D).
"""


class Run:
    """A model with its activations placed, trained on batches that are the same for every `how`."""

    def __init__(self, how, shape=SHAPE, precision="fp32", attention="sdpa"):
        torch.manual_seed(3)
        self.host, self.precision = Host(CPU), precision
        self.model = Transformer(shape, attention)
        resources = Resources(CPU, self.host)
        if how == "recomputed":
            activation_checkpointing.wrap(ActivationCheckpointingSettings(), self.model, resources)
        elif how != "kept":
            activation_hooks.wrap(ActivationOffloadSettings(how == "offloaded_ahead"), self.model, resources)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.shape = shape
        self.random = torch.Generator().manual_seed(4)

    def loss(self, length=T):
        draw = torch.randint(0, self.shape.vocab_size, (2, B, length), generator=self.random)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            return self.model(*draw)

    def step(self, length=T):
        self.optimizer.zero_grad(set_to_none=False)  # gradients are there in the forward pass, too, as DDP's
        loss = self.loss(length)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def gradients(self):
        return {name: one.grad.clone() for name, one in self.model.named_parameters()}


@cache
def peak_B(how, num_hidden_layers, precision="fp32"):
    run_shape = replace(SHAPE, num_hidden_layers=num_hidden_layers)
    with watch(CPU) as watched:
        watched.mark("build")
        run = Run(how, run_shape, precision)
        for _ in range(3):
            watched.mark("step")
            run.step()
        del run
        gc.collect()
    return watched.peaks[-1].live_B


@pytest.mark.parametrize(
    ("how", "precision", "shape", "attention"),
    [
        ("recomputed", "bf16", SHAPE, "sdpa"),
        ("offloaded", "fp32", OTHER, "explicit"),
        ("offloaded_ahead", "bf16", SHAPE, "sdpa"),
        ("offloaded_ahead", "fp32", OTHER, "explicit"),
    ],
    ids=["recomputed", "offloaded", "ahead, bf16", "ahead"],
)
def test_gradients_are_the_plain_ones_to_the_bit(how, precision, shape, attention):
    """Over steps that reuse host memory, with lengths that change and are odd."""
    plain, placed = (Run(one, shape, precision, attention=attention) for one in ("kept", how))
    for length in (T, T, 37, 1, T, 37):
        assert placed.step(length) == plain.step(length)
        ours = placed.gradients()
        for name, gradient in plain.gradients().items():
            assert gradient.isfinite().all()
            assert torch.equal(ours[name], gradient), name


@pytest.mark.parametrize("how", HOWS)
def test_with_dropout_and_summed_gradients(how):
    plain, placed = (Run(one, replace(OTHER, dropout=0.2)) for one in ("kept", how))
    for run in (plain, placed):
        torch.manual_seed(5)
        for _ in range(3):
            run.loss().backward()
    assert all(torch.equal(plain.gradients()[name], one) for name, one in placed.gradients().items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("how", "moved"), [("offloaded", LAYERS), ("offloaded_ahead", LAYERS - 1)])
def test_bytes_moved_are_those_of_saved_storages(how, moved, precision):
    run = Run(how, precision=precision)
    for _ in range(2):
        with TransferCounter(run.host) as traffic:
            run.step()
        blocks_B = moved * BLOCK_B[precision]
        assert traffic.down_B == traffic.up_B == run.host.allocated_B == blocks_B


def test_peak_is_lower_by_the_other_blocks():
    """Of one block a part is on the device; `test_peak_with_late_copies` has what is put away ahead."""
    less_B = peak_B("kept", LAYERS + 2) - peak_B("offloaded", LAYERS + 2)
    assert LAYERS + 0.99 <= less_B / BLOCK_B["fp32"] <= LAYERS + 2.01


@pytest.mark.parametrize("how", ["offloaded", "offloaded_ahead"])
def test_neither_steps_nor_a_pass_that_broke_off_leave_anything(how):
    run, plain = Run(how), Run("kept")
    run.loss(), plain.loss()  # no backward pass
    last = run.model.blocks[3]
    forward, last.forward = last.forward, fail
    with pytest.raises(KeyError):
        run.loss()
    plain.loss()
    last.forward = forward
    with torch.no_grad():
        assert run.loss() == plain.loss()
    assert run.step() == plain.step()
    allocated_B = run.host.allocated_B
    assert allocated_B > 0
    for _ in range(5):
        assert run.step() == plain.step()
        assert run.host.allocated_B == allocated_B
    del run.model, last, forward
    gc.collect()
    assert run.host.allocated_B == 0


def fail(*_):
    raise KeyError


def test_one_block_ahead_is_on_its_way():
    """When a block's backward pass begins, the block's below it are asked for, and none further down."""
    run = Run("offloaded_ahead")
    carried = []
    loss = run.loss()
    for number, block in enumerate(run.model.blocks):
        block.mlp.down.weight.register_post_accumulate_grad_hook(  # of the block's first product backward
            lambda _, number=number: carried.append((number, run.host.up_B))
        )
    loss.backward()
    blocks = [(number, up_B / BLOCK_B["fp32"]) for number, up_B in carried]
    assert blocks == [(4, 1), (3, 2), (2, 3), (1, 4), (0, 4)]


class Late:
    """Copies as late as a stream may: nothing is over before it is waited for. It keeps no memory alive."""

    def __init__(self, host):
        self.queue, self.begun = [], 0

    def copy(self, target, source):
        ends = [(one, StorageWeakRef(one.untyped_storage())) for one in (target, source)]
        self.queue.append([(address.data_ptr(), address.nbytes, alive) for address, alive in ends])
        return Copy(lambda: False, partial(self.wait, len(self.queue)))

    def wait(self, number):
        while self.begun < number:
            ends, self.begun = self.queue[self.begun], self.begun + 1
            assert not any(alive.expired() for _, _, alive in ends), "memory was given back before its copy"
            (target, size_B, _), (source, _, _) = ends
            ctypes.memmove(target, source, size_B)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_copies_that_are_late_are_waited_for(precision, monkeypatch):
    """The rules of a CUDA stream, without one: right values, and no memory given back while it is copied."""
    monkeypatch.setattr(activation_hooks, "CopyThread", Late)
    plain, placed = (Run(one, precision=precision) for one in ("kept", "offloaded_ahead"))
    for _ in range(3):
        assert placed.step() == plain.step()
        ours = placed.gradients()
        assert all(torch.equal(ours[name], one) for name, one in plain.gradients().items())


def test_peak_with_late_copies(monkeypatch):
    """Two blocks and no more, however slow the link."""
    monkeypatch.setattr(activation_hooks, "CopyThread", Late)
    less_B = peak_B("kept", LAYERS + 2) - peak_B.__wrapped__("offloaded_ahead", LAYERS + 2)
    assert less_B == pytest.approx(LAYERS * BLOCK_B["fp32"], rel=0.002)


def test_cuda_streams_are_asked_in_order(monkeypatch):
    """On a device that is not there: beside waits for the computation, which waits for the copy."""
    cuda = MagicMock()
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    target, source = torch.zeros(3), torch.ones(3)
    copy = SideStream(Host(torch.device("cuda"))).copy(target, source)
    assert torch.equal(target, source)
    copy.wait()
    beside, computing = cuda.Stream.return_value, cuda.current_stream.return_value
    event = beside.record_event.return_value
    beside.wait_stream.assert_called_once_with(computing)
    computing.wait_event.assert_called_once_with(event)
    assert copy.over() is event.query.return_value
    order = [name for name, *_ in cuda.mock_calls]
    within = [order.index(f"stream().{name}") for name in ("__enter__", "__exit__")]
    assert order.index("Stream().wait_stream") < within[0] < within[1] < order.index("Stream().record_event")


def test_torchs_own_hooks_are_counted():
    """What CUDA uses; here it copies to pageable memory, of the same size."""
    plain, placed = Run("kept"), Run("kept")
    saved = []

    def pack(tensor):
        saved.append(tensor.nbytes)
        return tensor.detach()

    hooks = {
        plain: partial(saved_tensors_hooks, pack, lambda tensor: tensor),
        placed: partial(activation_hooks.on_cpu, placed.host),
    }
    for run, context in hooks.items():
        for block in run.model.blocks:
            block.forward = partial(activation_hooks.within, context, block.forward)
    loss = placed.loss()
    assert loss == plain.loss()
    assert placed.host.allocated_B == sum(saved)
    loss.backward()
    assert placed.host.allocated_B == 0


def test_checkpoints_on_the_host_leave_the_device_two_layers_inputs():
    """That of the layer that is recomputed, and the one that was brought up for it."""

    def peak_B(**settings):
        workload = replace(LLAMA, num_hidden_layers=12, seq_len=256, micro_batch_size=32, vocab_size=50)
        step = build_step(workload, [{"activation_checkpointing": settings}])
        return dry_run(step, CUDA, reserved=False).peak_B

    inputs_B = (12 - 2) * 32 * 256 * LLAMA.hidden_size * 4
    assert peak_B() - peak_B(on_host=True) == pytest.approx(inputs_B, rel=0.02)
