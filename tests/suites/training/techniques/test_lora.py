"""Adapters against merged weights, quantized bases against their definitions."""

from dataclasses import replace

import pytest
import torch
from random_steps import assert_as_measured
from small_steps import HOST, LLAMA
from torch import nn

from harness.records import Unavailable
from suites.training.correctness import check
from suites.training.declared import LoRASettings
from suites.training.dry_run.dry_run import dry_run
from suites.training.quantization import NF4, NF4_BLOCK, Int8Linear, Nf4Linear
from suites.training.techniques import build_step
from suites.training.techniques.lora import DoRALinear, LoRALinear, elsewhere, linear_layers
from suites.training.trainer import Trainer

SHORT = replace(LLAMA, num_hidden_layers=2)


def test_falcons_own_linear_layer_gets_adapters_and_a_router_that_returns_more_gets_none():
    falcon = pytest.importorskip("transformers.models.falcon.modeling_falcon")
    llama4 = pytest.importorskip("transformers.models.llama4.modeling_llama4")
    router = llama4.Llama4Router(llama4.Llama4TextConfig(hidden_size=4, num_local_experts=2))
    model = nn.ModuleDict({"router": router, "query_key_value": falcon.FalconLinear(4, 8)})
    assert [*linear_layers(model)] == ["query_key_value"]


def trained(model):
    return {name for name, one in model.named_parameters() if one.requires_grad}


def test_adapters_alone_are_trained_and_have_states():
    trainer = Trainer(build_step(SHORT, [{"lora": {"rank": 4, "targets": ["query", "down"]}}]))
    before = {name: one.detach().clone() for name, one in trainer.plain.named_parameters()}
    for _ in range(2):  # B is zero at first, and so is A's first gradient
        trainer.train_step()
    changed = {name for name, one in trainer.plain.named_parameters() if not torch.equal(one, before[name])}
    expected = {
        f"blocks.{layer}.{part}.{adapter}.weight"
        for layer in range(2)
        for part in ("attention.query", "mlp.down")
        for adapter in ("down", "up")
    }
    assert trained(trainer.plain) == changed == expected
    elements = 2 * 4 * (3 * SHORT.hidden_size + SHORT.intermediate_size)
    moments_B = sum(one.nbytes for one in trainer.optimizer.state_tensors() if one.numel() > 1)
    assert moments_B == 8 * elements


@pytest.mark.parametrize("bias", [True, False])
def test_an_adapted_layer_is_the_layer_with_merged_weights(bias):
    torch.manual_seed(1)
    base, settings = nn.Linear(6, 5, bias=bias).requires_grad_(False), LoRASettings(rank=2, alpha=3.0)
    layer = LoRALinear(base, base, settings)
    nn.init.normal_(layer.up.weight)
    x = torch.randn(4, 3, 6, requires_grad=True)
    merged = base.weight + 1.5 * layer.up.weight @ layer.down.weight
    expected = nn.functional.linear(x, merged, base.bias)
    torch.testing.assert_close(layer(x), expected)
    inputs = [x, layer.up.weight, layer.down.weight]
    found = torch.autograd.grad(layer(x).square().sum(), inputs)
    torch.testing.assert_close(found, torch.autograd.grad(expected.square().sum(), inputs))


@pytest.mark.parametrize(("stored", "bias"), [("fp64", True), ("nf4", False), ("int8", True)])
def test_dora_is_its_formula(bias, stored):
    """m (W + s B A) x / |W + s B A|, row by row; the norm is a constant to autograd (section 4.3)."""
    torch.manual_seed(1)
    given = nn.Linear(64, 5, bias=bias).double().requires_grad_(False)
    base = {"fp64": lambda: given, "nf4": lambda: Nf4Linear(given, True), "int8": lambda: Int8Linear(given)}
    layer = DoRALinear(stored_as := base[stored](), given, LoRASettings(rank=2, alpha=3.0, dora=True))
    weight = (given.weight if stored == "fp64" else stored_as.weight()).double()
    assert torch.equal(layer.magnitude, weight.norm(dim=1))
    nn.init.normal_(layer.up.weight)
    nn.init.normal_(layer.magnitude)
    x = torch.randn(4, 3, 64, dtype=torch.float64, requires_grad=True)
    merged = weight + 1.5 * layer.up.weight @ layer.down.weight
    row = merged / merged.detach().square().sum(1, keepdim=True).sqrt()
    expected = torch.einsum("btc,rc,r->btr", x, row, layer.magnitude)
    expected = expected + layer.bias if bias else expected
    exact = {} if stored == "fp64" else {"rtol": 3e-2, "atol": 0.1}  # products in bf16
    torch.testing.assert_close(layer(x), expected, **exact)
    inputs = [x, layer.up.weight, layer.down.weight, layer.magnitude]
    found = torch.autograd.grad(layer(x).sum(), inputs)
    torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), inputs), **exact)


def linear(rows=24, columns=80):
    torch.manual_seed(3)
    layer = nn.Linear(columns, rows, bias=False)
    nn.init.normal_(layer.weight)
    return layer


def buffers_B(module):
    return sum(one.nbytes for one in module.buffers())


def test_nf4_takes_the_nearest_of_its_values_in_blocks_of_64():
    layer = linear()
    found = Nf4Linear(layer, double=False).weight().double().flatten()
    values = torch.tensor(NF4, dtype=torch.float64)
    for start in range(0, len(found), NF4_BLOCK):
        block = layer.weight.detach().double().flatten()[start : start + NF4_BLOCK]
        allowed = values * block.abs().max()
        nearest = allowed[(block.unsqueeze(1) - allowed).abs().argmin(1)]
        torch.testing.assert_close(found[start : start + NF4_BLOCK], nearest, rtol=2**-8, atol=1e-6)


def test_values_of_nf4_are_quantiles_of_a_normal_distribution():
    """QLoRA, appendix E and its footnotes: quantiles of N(0, 1) at equal steps, scaled to -1 and 1."""
    offset = (1 - 1 / (2 * 15) + 1 - 1 / (2 * 16)) / 2
    normal = torch.distributions.Normal(0.0, 1.0)
    positive = normal.icdf(torch.linspace(offset, 0.5, 9)[:-1])
    negative = -normal.icdf(torch.linspace(offset, 0.5, 8)[:-1])
    values = torch.cat([positive, negative, torch.zeros(1)]).sort().values
    torch.testing.assert_close(values / values.max(), torch.tensor(NF4), rtol=1e-4, atol=1e-4)


def test_double_quantization_changes_maxima_little_and_takes_fewer_bytes():
    layer = linear(512, 256)
    single, double = Nf4Linear(layer, double=False), Nf4Linear(layer, double=True)
    off = (double.weight() - single.weight()).float().norm() / single.weight().float().norm()
    assert 0 < off < 0.02
    elements = layer.weight.numel()
    assert buffers_B(single) == elements / 2 + 4 * elements / 64 + 16 * 4
    assert buffers_B(double) == elements / 2 + elements / 64 + 4 * elements / 64 / 256 + (16 + 256 + 1) * 4


def test_int8_is_within_half_a_step_of_each_row():
    layer = linear()
    found = Int8Linear(layer)
    steps = layer.weight.abs().amax(1, keepdim=True) / 127
    off = (found.weight().float() - layer.weight).abs()
    assert bool((off <= steps * 0.5 + layer.weight.abs() * 2**-8).all())
    assert buffers_B(found) == layer.weight.numel() + 4 * layer.out_features


@pytest.mark.parametrize("make", [Int8Linear, lambda layer: Nf4Linear(layer, double=True)])
def test_a_quantized_product_and_its_gradient_are_those_of_the_widened_weight(make):
    layer = make(linear())
    x = torch.randn(7, 80, requires_grad=True)
    result = layer(x)
    weight = layer.weight().float()
    torch.testing.assert_close(result, x.bfloat16().float() @ weight.t(), rtol=2e-2, atol=0.2)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(gradient, weight.sum(0).expand(7, -1), rtol=2e-2, atol=0.1)


def test_targets_of_a_hugging_face_model_have_its_names():
    """GPT-2's layers in transformers are Conv1D."""
    pytest.importorskip("transformers")
    config = {**NEOX, "model_type": "llama"}
    given = {"lora": {"targets": ["q_proj", "v_proj"], "base": "nf4"}}
    step = build_step(replace(SHORT, hf_config=config), [given])
    assert len(trained(Trainer(step).plain)) == 2 * 2 * 2
    assert_as_measured(step)
    check(step)
    with pytest.raises(Unavailable, match=r"no nn\.Linear"):
        build_step(replace(SHORT, hf_config={**config, "model_type": "gpt2"}), ["lora"])


SIZES = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
NEOX = {**SIZES, "model_type": "gpt_neox", "intermediate_size": 128, "max_position_embeddings": 64}
EXPERTS = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
MIXTRAL = {**NEOX, "model_type": "mixtral", **EXPERTS}
LLAMA4 = {
    **MIXTRAL,
    "model_type": "llama4_text",
    "head_dim": 32,
    "intermediate_size_mlp": 128,
    "no_rope_layers": [],
}


@pytest.mark.parametrize(
    ("wanted", "there", "found"),
    [
        (["q_proj", "v_proj"], "query_key_value dense dense_h_to_4h lm_head", {"query_key_value"}),
        (["q_proj", "v_proj"], "q k v o wi_0 wi_1 wo", {"q", "v"}),
        (["o_proj", "down_proj"], "c_attn c_proj c_fc", {"c_proj"}),
        (["query_key_value"], "q_proj k_proj v_proj o_proj", {"q_proj", "k_proj", "v_proj"}),
        (["gate_proj", "up_proj"], "fc1 fc2 dense", {"fc1"}),
    ],
)
def test_layers_by_other_names(wanted, there, found):
    assert elsewhere(wanted, set(there.split())) == found


def quantized_mixtral(experts, base="nf4", config=MIXTRAL):
    settings = {"targets": ["q_proj"], "rank": 4, "base": base, "experts": experts}
    return build_step(replace(SHORT, hf_config=config), ["bf16_states", {"lora": settings}])


@pytest.mark.parametrize(("base", "config"), [("nf4", MIXTRAL), ("int8", LLAMA4)])
def test_quantized_experts_compute_what_their_widened_weights_do(base, config):
    pytest.importorskip("transformers")
    losses = {}
    for experts in ("linear", "tensor", "bf16"):
        trainer = Trainer(quantized_mixtral(experts, base, config))
        losses[experts] = [float(trainer.train_step()) for _ in range(2)]
    assert losses["linear"] == pytest.approx(losses["tensor"], rel=1e-3)
    assert losses["linear"] != losses["bf16"]
    assert losses["linear"] == pytest.approx(losses["bf16"], rel=1e-2)


def test_experts_next_to_a_quantized_base_may_be_in_fp32_alone():
    pytest.importorskip("transformers")
    widths = {(one.ndim, one.dtype) for one in Trainer(quantized_mixtral("fp32")).plain.parameters()}
    assert widths == {(3, torch.float32), (2, torch.bfloat16), (1, torch.bfloat16)}


def test_trained_ends_are_copies_next_to_the_frozen_ones():
    trainer = Trainer(build_step(SHORT, [{"lora": {"targets": ["query"], "rank": 4, "ends": True}}]))
    before = trainer.plain.head.frozen_weight.detach().clone()
    trainer.train_step()
    ends = {"token_embedding.weight", "head.weight"}
    assert {name for name in trained(trainer.plain) if "query" not in name} == ends
    assert torch.equal(trainer.plain.head.frozen_weight, before)
    assert not torch.equal(trainer.plain.head.weight, before)


def test_lightnings_base_quantizes_the_output_layer_and_keeps_inputs_until_the_next_pass_has_ended():
    """Per token and layer: inputs of queries, keys, values (one), output, gate and up (one), and down."""

    def step_of(lightning):
        given = {"base": "nf4", "targets": ["query"], "rank": 4, "lightning": lightning}
        twice = replace(SHORT, seq_len=128, gradient_accumulation_steps=2)  # nothing of the step before shows
        return build_step(twice, ["bf16_states", {"lora": given}])

    kept, plain = dry_run(step_of(True), HOST), dry_run(step_of(False), HOST)
    assert isinstance(Trainer(step_of(True)).plain.head, Nf4Linear)
    assert_as_measured(step_of(True), kept)
    tokens, size, width = 2 * 128, SHORT.hidden_size, SHORT.intermediate_size
    once_B = 2 * tokens * (2 * (3 * size + width) + size)  # bf16; of both layers, and the output layer's
    assert kept.peak_B - plain.peak_B > once_B


def test_quantized_experts_take_half_a_byte_per_weight_and_are_widened_singly_or_at_once():
    pytest.importorskip("transformers")
    weights, peaks_B = 2 * 4 * 3 * 64 * 128, {}
    for experts in ("linear", "tensor"):
        step = quantized_mixtral(experts)
        model = Trainer(step).plain
        assert all(parameter.ndim < 3 for parameter in model.parameters())
        packed = (one for name, one in model.named_buffers() if name.endswith("packed") and "experts" in name)
        assert sum(one.nbytes for one in packed) == weights / 2
        run = dry_run(step, HOST)
        assert_as_measured(step, run)
        peaks_B[experts] = run.peak_B
    assert peaks_B["tensor"] - peaks_B["linear"] > 2 * weights / 2 / 4  # of four experts of a layer at once


def test_a_base_in_nf4_that_fsdp_shards_is_a_frozen_parameter_of_the_same_bytes():
    for columns in (80, 63):
        layer = linear(3, columns)
        whole, sharded = Nf4Linear(layer, double=True), Nf4Linear(layer, double=True, sharded=True)
        assert torch.equal(whole.weight(), sharded.weight())
        (parameter,) = sharded.parameters()
        assert (parameter.dtype, parameter.requires_grad) == (torch.bfloat16, False)
        assert buffers_B(sharded) + parameter.nbytes == buffers_B(whole)
