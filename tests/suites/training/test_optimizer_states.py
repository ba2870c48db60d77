"""States in bf16 and in 8 bits, Adafactor, Muon, and updates in the backward pass: values and bytes."""

from dataclasses import replace

import pytest
import torch
from random_steps import assert_as_measured
from small_steps import LLAMA
from torch import nn

from harness.records import Unavailable
from suites.training.dry_run.dry_run import among_ranks
from suites.training.quantization import BLOCK, SLICE, AdamW8bit, Moment, dynamic_codes
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

FEW_TOKENS = replace(LLAMA, num_hidden_layers=2, seq_len=8)
EIGHT_BIT = {"optimizer": {"name": "adamw_8bit"}}

SET_UPS = {
    "bf16": ["bf16_states"],
    "bf16, fused": ["bf16_states", {"optimizer": {"impl": "fused"}}],
    "bf16, checkpointed": ["bf16_states", "attention", "activation_checkpointing"],
    "8 bits": [EIGHT_BIT],
    "8 bits, bf16": ["bf16_states", EIGHT_BIT],
    "8 bits, bf16 gradients": [{"mixed_precision": {"gradients": "bf16"}}, EIGHT_BIT],
    "adafactor": [{"optimizer": {"name": "adafactor"}}],
    "adafactor, foreach": [{"optimizer": {"name": "adafactor", "impl": "foreach"}}],
    "muon": [{"optimizer": {"name": "muon"}}],
    "in the backward pass": ["optimizer_in_backward"],
    "in the backward pass, mixed": ["optimizer_in_backward", "mixed_precision"],
    "in the backward pass, 8 bits": ["optimizer_in_backward", "bf16_states", EIGHT_BIT],
    "in the backward pass, adafactor": ["optimizer_in_backward", {"optimizer": {"name": "adafactor"}}],
}


@pytest.mark.parametrize("name", SET_UPS)
def test_a_dry_run_is_as_measured(name):
    assert_as_measured(build_step(FEW_TOKENS, SET_UPS[name]))


@pytest.mark.parametrize("given", ["bf16_states", "optimizer_in_backward", EIGHT_BIT], ids=str)
def test_a_dry_run_of_a_rank_is_as_measured(given):
    step = build_step(replace(FEW_TOKENS, num_hidden_layers=3, dp_size=4), ["fsdp2", given])
    with among_ranks(step):
        assert_as_measured(step)


def test_parameters_of_several_slices_are_as_measured():
    """On fake tensors the first and the last slice of each stand for all."""
    workload = replace(FEW_TOKENS, intermediate_size=34_000, num_hidden_layers=1)
    assert max(one.numel() for one in Trainer(build_step(workload)).plain.parameters()) > 2 * SLICE
    for given in (EIGHT_BIT, {"lora": {"base": "nf4"}}):
        assert_as_measured(build_step(workload, [given]))


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
        torch.testing.assert_close(
            (own - block).abs(), nearest, rtol=1e-4, atol=1e-6 * float(block.abs().max())
        )


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


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["bf16_states", "mixed_precision"], "mixed precision has fp32 states"),
        (["bf16_states", "zero"], "deepspeed's engine keeps fp32 states"),
        (["optimizer_in_backward", "ddp"], "would update from one rank's gradients"),
        (["optimizer_in_backward", "gradient_accumulation"], "gradients cannot be accumulated"),
        (
            ["optimizer_in_backward", {"mixed_precision": {"gradients": "bf16"}}],
            "another technique has its own",
        ),
        (["optimizer_in_backward", "zero"], "another technique has its own"),
        ([{"optimizer": {"name": "adamw_8bit", "impl": "fused"}}], "adamw_8bit has one implementation"),
        ([{"optimizer": {"name": "paged_adamw_8bit"}}], "the driver decides at run time"),
        (["fsdp2", {"optimizer": {"name": "muon"}}], "Muon orthogonalizes full matrices"),
        (["zero", {"optimizer": {"name": "muon"}}], "deepspeed's shards are flat"),
        ([{"mixed_precision": {"gradients": "fp32"}}, {"optimizer": {"name": "muon"}}], "have no names"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(given, words):
    with pytest.raises(Unavailable) as caught:
        build_step(replace(FEW_TOKENS, micro_batch_size=2), given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
