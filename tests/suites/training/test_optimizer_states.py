"""States in bf16 and in 8 bits, Adafactor, Muon, master weights, and updates in the backward pass."""

from dataclasses import replace

import pytest
import torch
from small_steps import LLAMA
from torch import nn

from suites.training.host_memory import HostMemory, Resources
from suites.training.optimizers import make_torch_optimizer
from suites.training.quantization import BLOCK, AdamW8bit, Moment, dynamic_codes
from suites.training.techniques import build_step, mixed_precision
from suites.training.trainer import CPU, Trainer

FEW_TOKENS = replace(LLAMA, num_hidden_layers=2, seq_len=8)
EIGHT_BIT = {"optimizer": {"name": "adamw_8bit"}}


def states_B(techniques, **changes):
    trainer = Trainer(build_step(replace(FEW_TOKENS, **changes), techniques))
    trainer.train_step()
    weights = sum(one.numel() for one in trainer.plain.parameters())
    return sum(one.nbytes for one in trainer.optimizer.state_tensors()) / weights


def test_bytes_of_states_per_parameter():
    wide = {"hidden_size": 256, "intermediate_size": 688}
    assert states_B([], **wide) == pytest.approx(8, rel=1e-3)
    assert states_B(["bf16_states"], **wide) == pytest.approx(4, rel=1e-3)
    assert states_B([EIGHT_BIT], **wide) == pytest.approx(2 + 8 / BLOCK, rel=1e-2)
    assert states_B([{"optimizer": {"name": "adafactor"}}], **wide) < 0.1


def test_gradients_are_released_one_by_one():
    seen = []

    def watch(model, resources):
        for parameter in model.parameters():
            parameter.register_hook(lambda _: seen.append(sum(one.grad is not None for one in parameters)))
        parameters.extend(model.parameters())
        return model

    parameters = []
    step = build_step(FEW_TOKENS, ["optimizer_in_backward"])
    Trainer(replace(step, wraps=(*step.wraps, watch))).train_step()
    assert len(seen) == len(parameters)
    assert max(seen) <= 1


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_those_of_dynamic_quantization(signed):
    values = torch.tensor(dynamic_codes(signed), dtype=torch.float64)
    assert len(values) == 256
    assert bool((values.diff() > 0).all())
    assert values[-1] == 1
    assert bool((values == 0).any())
    positive = values[values > 0]
    for decade in range(7):  # steps of equal size between two powers of ten, twice as many as below
        low, high = 10.0 ** (decade - 7), 10.0 ** (decade - 6)
        count = int(((positive > low) & (positive < high)).sum())
        assert count == 2**decade * (1 if signed else 2)


@pytest.mark.parametrize("signed", [True, False])
def test_a_quantized_moment_is_the_nearest_code_times_its_blocks_maximum(signed):
    torch.manual_seed(1)
    values = torch.randn(5000) * torch.logspace(-3, 3, 5000)
    values = values if signed else values.abs()
    table = torch.tensor(dynamic_codes(signed))
    moment = Moment(values, signed)
    here = slice(0, len(values))
    assert float(moment.read(here, table).abs().max()) == 0
    moment.write(here, values, table)
    found = moment.read(here, table)
    for start in range(0, len(values), BLOCK):
        block, own = values[start : start + BLOCK], found[start : start + BLOCK]
        nearest = (block.unsqueeze(1) - table * block.abs().max()).abs().amin(1)
        near = {"rtol": 1e-4, "atol": 1e-6 * float(block.abs().max())}
        torch.testing.assert_close((own - block).abs(), nearest, **near)


@pytest.mark.parametrize("size", [100, 70_000])
def test_an_8_bit_update_follows_adamw_in_float64(size):
    torch.manual_seed(2)
    start, target = torch.randn(size), torch.randn(size)
    own, exact = nn.Parameter(start.clone()), nn.Parameter(start.double())
    settings = {"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-8}
    pairs = [(own, AdamW8bit([own], **settings)), (exact, torch.optim.AdamW([exact], **settings))]
    for _ in range(20):
        for parameter, optimizer in pairs:
            parameter.grad = parameter.detach() - target.to(parameter.dtype)
            optimizer.step()
    moved = (exact.detach() - start.double()).norm()
    off = (own.detach().double() - exact.detach()).norm() / moved
    assert off < (1e-5 if size < 4096 else 0.05)


def test_muon_updates_the_matrices_of_layers_alone():
    trainer = Trainer(build_step(FEW_TOKENS, [{"optimizer": {"name": "muon"}}]))
    trainer.train_step()
    names = {id(one): name for name, one in trainer.plain.named_parameters()}
    by_muon = {names[id(one)] for one in trainer.optimizer.inner.state}
    by_adamw = {names[id(one)] for one in trainer.optimizer.of_others.state}
    assert by_muon == {name for name in names.values() if name.startswith("blocks") and "norm" not in name}
    assert by_adamw == set(names.values()) - by_muon


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
