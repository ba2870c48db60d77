"""The transformer against published parameter counts, its experts one by one, and its dry run as measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_steps import HOST, LLAMA, TECHNIQUES

from suites.memory.live_bytes import measure_peak
from suites.training.correctness import check
from suites.training.dry_run.dry_run import dry_run
from suites.training.models.mixture import GroupedProduct, MixtureMLP
from suites.training.models.model import SwiGLUMLP, Transformer
from suites.training.techniques import build_step
from suites.training.workload import ModelShape


def llama(layers: int, hidden: int, heads: int, kv_heads: int, inner: int) -> ModelShape:
    return ModelShape(
        layers, hidden, heads, kv_heads, inner, 32000, "rms", "swiglu", "rotary", 4096,
        tie_word_embeddings=False, bias=False,
    )  # fmt: skip


def gpt(layers: int, hidden: int, heads: int, positions: int) -> ModelShape:
    return ModelShape(
        layers, hidden, heads, heads, 4 * hidden, 50257, "layer", "gelu", "learned", positions,
        tie_word_embeddings=True, bias=True,
    )  # fmt: skip


TINY = replace(llama(2, 32, 4, 2, 48), vocab_size=61, max_position_embeddings=16)
TINY_GPT = replace(gpt(2, 32, 4, 16), vocab_size=61)


def on_meta(shape: ModelShape) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(shape).parameters())


shapes = st.builds(
    lambda kv_heads, groups, size, **fields: ModelShape(
        hidden_size=kv_heads * groups * size, num_attention_heads=kv_heads * groups,
        num_key_value_heads=kv_heads, max_position_embeddings=16, **fields,
    ),
    kv_heads=st.integers(1, 3), groups=st.integers(1, 3), size=st.sampled_from([2, 4, 8]),
    num_hidden_layers=st.integers(1, 3), intermediate_size=st.integers(1, 40), vocab_size=st.integers(2, 70),
    norm=st.sampled_from(["rms", "layer"]), mlp=st.sampled_from(["swiglu", "gelu"]),
    position=st.sampled_from(["rotary", "learned"]), tie_word_embeddings=st.booleans(), bias=st.booleans(),
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(shapes)
def test_formula_counts_what_is_built(shape):
    assert on_meta(shape) == shape.parameters


def batch(shape: ModelShape, length: int = 11) -> torch.Tensor:
    return torch.randint(shape.vocab_size, (3, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [TINY, TINY_GPT], ids=["llama", "gpt"])
def test_sdpa_equals_explicit_attention(shape):
    models = {}
    for attention in ("explicit", "sdpa"):
        torch.manual_seed(1)
        models[attention] = Transformer(shape, attention).double()
        tokens = batch(shape)
        models[attention](tokens, tokens).backward()
    pairs = zip(models["explicit"].parameters(), models["sdpa"].parameters(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("shape", [TINY, TINY_GPT], ids=["llama", "gpt"])
@pytest.mark.parametrize("attention", ["explicit", "sdpa"])
def test_no_position_sees_a_later_one(shape, attention):
    torch.manual_seed(1)
    model = Transformer(shape, attention)
    seen = {}
    model.head.register_forward_hook(lambda module, args, output: seen.update(logits=output.detach()))
    tokens = batch(shape)
    model(tokens, tokens)
    before = seen["logits"]
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % shape.vocab_size
    model(changed, tokens)
    torch.testing.assert_close(seen["logits"][:, :-1], before[:, :-1])
    assert not torch.equal(seen["logits"][:, -1], before[:, -1])


def test_impossible_shapes_are_refused():
    with pytest.raises(ValueError, match="multiple of num_attention_heads"):
        Transformer(replace(TINY, num_attention_heads=3))
    with pytest.raises(ValueError, match="without biases"):
        Transformer(replace(MIXTURE, bias=True).shape)
    with pytest.raises(ValueError, match="longer than max_position_embeddings=16"):
        Transformer(TINY)(batch(TINY, 17), batch(TINY, 17))


MIXTURE = replace(LLAMA, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=96,
                  shared_expert_intermediate_size=40)  # fmt: skip


def made(shared=True):
    torch.manual_seed(0)
    mlp = SwiGLUMLP(MIXTURE.shape, width=40) if shared else None
    mixture = MixtureMLP(64, 96, 6, 2, mlp)
    for parameter in mixture.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return mixture


def one_by_one(mixture, x_BTD):
    """Pass each token to its experts alone."""
    results = []
    for x_D in x_BTD.flatten(0, 1):
        probabilities_E = F.softmax(mixture.router.weight @ x_D, dim=0)
        chosen = sorted(range(6), key=lambda expert: -probabilities_E[expert].item())[:2]
        result_D = 0 if mixture.shared is None else mixture.shared(x_D)
        for expert in chosen:
            gate, up, down = (one[expert] for one in mixture.experts.parameters())
            weight = probabilities_E[expert] / sum(probabilities_E[other] for other in chosen)
            result_D = result_D + weight * (down @ (F.silu(gate @ x_D) * (up @ x_D)))
        results.append(result_D)
    return torch.stack(results).view_as(x_BTD)


@pytest.mark.parametrize("shared", [True, False])
def test_it_is_its_experts_one_by_one(shared):
    mixture, x_BTD, above_BTD = made(shared), torch.randn(2, 9, 64), torch.randn(2, 9, 64)
    found = []
    for run in (mixture, lambda given: one_by_one(mixture, given)):
        given = x_BTD.clone().requires_grad_()
        mixture.zero_grad()
        result = run(given)
        result.backward(above_BTD)
        found.append([result, given.grad, *(one.grad.clone() for one in mixture.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_product_is_torchs_grouped_one_and_scales_the_gradient_of_the_weights_alone(dtype):
    """One group is empty."""
    counts = [5, 0, 11]
    x_MD, weight_EFD = torch.randn(16, 32, dtype=dtype), torch.randn(3, 24, 32, dtype=dtype)
    ends = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    above_MF, found = torch.randn(16, 24, dtype=dtype), []
    for product in (
        lambda x, weight: GroupedProduct.apply(x, weight, counts, 0.25),
        lambda x, weight: F.grouped_mm(x, weight.transpose(1, 2), offs=ends),
    ):
        given = [one.clone().requires_grad_() for one in (x_MD, weight_EFD)]
        result = product(*given)
        result.backward(above_MF)
        found.append([result, *(one.grad for one in given)])
    found[1][2] /= 4
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("techniques", ["", "autocast flash", "fp32_grads flash full"])
def test_a_dry_run_with_equal_shares_is_what_a_real_routing_takes_on_one_device(techniques):
    """All experts are on it, so it does not matter which have the tokens."""
    step = build_step(replace(MIXTURE, vocab_size=2000), [TECHNIQUES[one] for one in techniques.split()])
    check(step)
    measured_B = measure_peak(step, torch.device("cpu"), steady_steps=1).peaks[-1].live_B
    assert dry_run(step, HOST).peak_B == pytest.approx(measured_B, rel=1e-5)
