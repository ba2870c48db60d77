"""Activations put away and brought back: the same gradients, bytes as counted, and less device memory."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from harness.instruments.memory.allocator import watch
from suites.offload.on_rank import TransferCounter
from suites.training.declared import ActivationCheckpointingSettings, ActivationOffloadSettings
from suites.training.host_memory import Copy, Resources, SideStream
from suites.training.host_memory import HostMemory as Host
from suites.training.models.model import Transformer
from suites.training.techniques import activation_checkpointing
from suites.training.techniques import activation_offload as activation_hooks
from suites.training.workload import ModelShape

CPU = torch.device("cpu")
HOWS = ("recomputed", "offloaded", "offloaded_ahead")
B, T, D, F, LAYERS = 2, 64, 64, 176, 5
SHAPE = ModelShape(
    LAYERS,
    D,
    4,
    2,
    F,
    61,
    norm="rms",
    mlp="swiglu",
    position="rotary",
    max_position_embeddings=T,
    tie_word_embeddings=False,
    bias=False,
)
GPT = replace(
    SHAPE,
    num_key_value_heads=4,
    norm="layer",
    mlp="gelu",
    position="learned",
    tie_word_embeddings=True,
    bias=True,
)
BLOCK_B = {"fp32": B * T * 4 * (10 * D + 4 * F), "bf16": B * T * (34 * D + 8 * F)}
"""What a block of SHAPE saves, storages below 4 KiB, weights and rotary tables not counted.

Elements per token: of each norm its input, normed input and result (3 D, twice), queries, keys, values and
mixed values (4 D), of the gated layer gate, up, activation and product (4 F); 4 bytes each. Under autocast
inputs and normed inputs have 4 bytes (4 D), all else 2; a norm's result is cast for each of its 3 or 2
products (5 D).
"""


def place(model, how, host):
    resources = Resources(host.device, host)
    if how == "recomputed":
        settings = ActivationCheckpointingSettings()
        activation_checkpointing.wrap(settings, model, resources)
    elif how != "kept":
        activation_hooks.wrap(ActivationOffloadSettings(how == "offloaded_ahead"), model, resources)


class Run:
    """A model with its activations placed, trained on batches that are the same for every `how`."""

    def __init__(self, how, shape=SHAPE, precision="fp32", length=T, attention="sdpa"):
        torch.manual_seed(3)
        self.host, self.precision = Host(CPU), precision
        self.model = Transformer(shape, attention)
        place(self.model, how, self.host)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.lengths, self.shape = length, shape
        self.random = torch.Generator().manual_seed(4)

    def loss(self, length=None):
        draw = torch.randint(0, self.shape.vocab_size, (2, B, length or self.lengths), generator=self.random)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            return self.model(*draw)

    def step(self, length=None):
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


def saved_B(run):
    """Return bytes of storages that the blocks' forward passes save, block by block, by hooks of its own.

    Left out: parameters, buffers and casts of weights, which hang not on the batch.
    """
    fixed = {one.untyped_storage().data_ptr() for one in [*run.model.parameters(), *run.model.buffers()]}
    weights = {tuple(one.shape) for one in run.model.parameters()}
    found = []

    def observed(block, forward):
        def call(*arguments):
            kept = {}

            def pack(tensor):
                storage = tensor.untyped_storage()
                cast = tensor.dtype == torch.bfloat16 and tuple(tensor.shape[::-1]) in weights
                if storage.data_ptr() not in fixed and not cast and storage.nbytes() >= 4096:
                    kept[storage.data_ptr()] = (storage, storage.nbytes())  # alive, so addresses differ
                return tensor.detach()

            with saved_tensors_hooks(pack, lambda saved: saved):
                output = forward(*arguments)
            found.append(sum(size_B for _, size_B in kept.values()))
            return output

        return call

    for block in run.model.blocks:
        block.forward = observed(block, block.forward)
    run.loss().backward()
    return found


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("shape", "attention"), [(SHAPE, "sdpa"), (GPT, "explicit")], ids=["llama", "gpt"])
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
    shape = replace(GPT, dropout=0.2)
    runs = [Run(one, shape) for one in ("kept", how)]
    for run in runs:
        torch.manual_seed(5)
        for _ in range(3):
            run.loss().backward()
    assert all(torch.equal(runs[0].gradients()[name], one) for name, one in runs[1].gradients().items())


def test_names_and_parameters_stay():
    plain = Run("kept").model
    for how in HOWS:
        model = Run(how).model
        assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
        ours, theirs = model.state_dict(), plain.state_dict()
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("how", "moved"), [("offloaded", LAYERS), ("offloaded_ahead", LAYERS - 1)])
def test_bytes_moved_are_those_of_saved_storages(how, moved, precision):
    """By two other ways: hooks that only look on, and a closed formula."""
    blocks_B = saved_B(Run("kept", precision=precision))
    assert blocks_B == [BLOCK_B[precision]] * LAYERS
    run = Run(how, precision=precision)
    for _ in range(2):
        with TransferCounter(run.host) as traffic:
            run.step()
        assert traffic.down_B == traffic.up_B == sum(blocks_B[:moved])
    assert run.host.allocated_B == sum(blocks_B[:moved])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_layer_more_takes_no_activations_more(precision):
    """The peak grows by less than the plain one does: by the layers' activations."""
    few, many = LAYERS, LAYERS + 2
    grown_B = {
        how: peak_B(how, many, precision) - peak_B(how, few, precision) for how in ("kept", "offloaded")
    }
    assert grown_B["kept"] - grown_B["offloaded"] == pytest.approx(2 * BLOCK_B[precision], rel=0.02)


@pytest.mark.parametrize(("how", "least", "most"), [("offloaded", 1, 0), ("offloaded_ahead", 2, 2)])
def test_peak_is_lower_by_the_other_blocks(how, least, most):
    """Of one block a part is on the device, or ahead one block and all of another: no more, and no less."""
    less_B = peak_B("kept", LAYERS + 2) - peak_B(how, LAYERS + 2)
    slack_B = 0.01 * BLOCK_B["fp32"]
    assert (LAYERS + 2 - least) * BLOCK_B["fp32"] - slack_B <= less_B
    assert less_B <= (LAYERS + 2 - most) * BLOCK_B["fp32"] + slack_B


def test_what_is_computed_again_leaves_each_block_s_input():
    less_B = peak_B("kept", LAYERS + 2) - peak_B("kept", LAYERS)
    less_B -= peak_B("recomputed", LAYERS + 2) - peak_B("recomputed", LAYERS)
    state_B = 2 * torch.get_rng_state().nbytes  # of the random generator, which `checkpoint` keeps
    small_B = 2 * B * T * 4 * (2 + 4)  # reciprocal norms, and a softmax's sum for each head
    assert less_B == 2 * (BLOCK_B["fp32"] - B * T * D * 4) + small_B - state_B


@pytest.mark.parametrize("how", ["offloaded", "offloaded_ahead"])
def test_nothing_is_left_over_ten_steps(how):
    run = Run(how)
    run.step()
    allocated_B = run.host.allocated_B
    assert allocated_B > 0
    for _ in range(10):
        assert run.step().isfinite()
        assert run.host.allocated_B == allocated_B
    del run.model
    gc.collect()
    assert run.host.allocated_B == 0


@pytest.mark.parametrize("how", ["offloaded", "offloaded_ahead"])
def test_a_pass_that_broke_off_leaves_nothing(how):
    run = Run(how)
    plain = Run("kept")
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
    assert run.step() == plain.step()
    assert run.host.allocated_B == allocated_B


def fail(*_):
    raise KeyError


@pytest.mark.parametrize("how", ["offloaded", "offloaded_ahead"])
def test_a_graph_that_is_kept_can_be_traced_again(how):
    run = Run(how)
    loss = run.loss()
    loss.backward(retain_graph=True)
    once = run.gradients()
    loss.backward()
    assert all(torch.equal(one, 2 * once[name]) for name, one in run.gradients().items())


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
    calls = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            calls.append(f"{self.name} waits for {other.name}")

        def wait_event(self, event):
            calls.append(f"{self.name} waits for the copy")

        def record_event(self):
            calls.append(f"{self.name} marks the copy")
            return Mark()

        def __enter__(self):
            calls.append("beside it")

        def __exit__(self, *_):
            calls.append("computing again")

    class Mark:
        def query(self):
            return True

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("beside"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("computing"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    target, source = torch.zeros(3), torch.ones(3)
    copy = SideStream(Host(torch.device("cuda"))).copy(target, source)
    assert torch.equal(target, source)
    assert copy.over()
    copy.wait()
    assert calls == [
        "beside waits for computing",
        "beside it",
        "computing again",
        "beside marks the copy",
        "computing waits for the copy",
    ]


def test_torchs_own_hooks_are_counted():
    """What CUDA uses; here it copies to pageable memory, of the same size."""
    plain, placed = Run("kept"), Run("kept")
    saved = []
    for block in placed.model.blocks:
        block.forward = partial(
            activation_hooks.within, partial(activation_hooks.on_cpu, placed.host), block.forward
        )
    for block in plain.model.blocks:
        hooks = partial(
            saved_tensors_hooks, lambda one: (saved.append(one.nbytes), one.detach())[1], lambda one: one
        )
        block.forward = partial(activation_hooks.within, hooks, block.forward)
    loss = placed.loss()
    assert loss == plain.loss()
    assert placed.host.allocated_B == sum(saved)
    loss.backward()
    assert placed.host.allocated_B == 0
