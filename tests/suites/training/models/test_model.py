"""The transformer against published parameter counts, and its two attentions against each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.training.models.model import Transformer
from suites.training.workload import ModelShape


def llama(
    num_hidden_layers: int,
    hidden_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    intermediate_size: int,
) -> ModelShape:
    return ModelShape(
        num_hidden_layers,
        hidden_size,
        num_attention_heads,
        num_key_value_heads,
        intermediate_size,
        32000,
        "rms",
        "swiglu",
        "rotary",
        4096,
        tie_word_embeddings=False,
        bias=False,
    )


def gpt(
    num_hidden_layers: int, hidden_size: int, num_attention_heads: int, max_position_embeddings: int
) -> ModelShape:
    return ModelShape(
        num_hidden_layers,
        hidden_size,
        num_attention_heads,
        num_attention_heads,
        4 * hidden_size,
        50257,
        "layer",
        "gelu",
        "learned",
        max_position_embeddings,
        tie_word_embeddings=True,
        bias=True,
    )


TINY = replace(llama(2, 32, 4, 2, 48), vocab_size=61, max_position_embeddings=16)
TINY_GPT = replace(gpt(2, 32, 4, 16), vocab_size=61)

PUBLISHED = {
    # weights of the published checkpoints, counted by their model cards' safetensors indexes
    "llama_2_7b": (llama(32, 4096, 32, 32, 11008), 6_738_415_616),
    "llama_2_13b": (llama(40, 5120, 40, 40, 13824), 13_015_864_320),
    "llama_2_70b": (llama(80, 8192, 64, 8, 28672), 68_976_648_192),
    "gpt_2": (gpt(12, 768, 12, 1024), 124_439_808),
    "gpt_2_xl": (gpt(48, 1600, 25, 1024), 1_557_611_200),
}


def on_meta(shape: ModelShape) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(shape).parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name):
    shape, expected = PUBLISHED[name]
    assert on_meta(shape) == expected
    assert shape.parameters == expected


def test_gpt_3_has_175_billion():
    shape = gpt(96, 12288, 96, 2048)  # arXiv 2005.14165, table 2.1
    assert on_meta(shape) == shape.parameters
    assert shape.parameters == pytest.approx(174.6e9, rel=1e-3)


shapes = st.builds(
    lambda depth, kv_heads, groups, size, mlp_size, vocab_size, norm, mlp, position, tied, bias: ModelShape(
        num_hidden_layers=depth,
        hidden_size=kv_heads * groups * size,
        num_attention_heads=kv_heads * groups,
        num_key_value_heads=kv_heads,
        intermediate_size=mlp_size,
        vocab_size=vocab_size,
        norm=norm,
        mlp=mlp,
        position=position,
        max_position_embeddings=16,
        tie_word_embeddings=tied,
        bias=bias,
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([2, 4, 8]),
    st.integers(1, 40),
    st.integers(2, 70),
    st.sampled_from(["rms", "layer"]),
    st.sampled_from(["swiglu", "gelu"]),
    st.sampled_from(["rotary", "learned"]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
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


def test_rotary_scores_depend_on_distance_alone():
    """Rotating by positions p and q gives the same product wherever p - q is the same."""
    from suites.training.models.model import PositionTensors, rotate

    model = Transformer(TINY)
    query, key = torch.randn(1, 1, 1, TINY.head_size), torch.randn(1, 1, 1, TINY.head_size)
    length = 9
    positions = PositionTensors(model.cos_TK[:length], model.sin_TK[:length], None)
    scores = (
        rotate(query.expand(1, 1, length, -1), positions) @ rotate(key.expand(1, 1, length, -1), positions).mT
    )
    for distance in (0, 1, 4):
        along = scores[0, 0].diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-4, atol=1e-5)


def test_untrained_loss_is_that_of_chance():
    tokens = batch(TINY)
    loss = Transformer(TINY)(tokens, tokens)
    assert loss.item() == pytest.approx(torch.tensor(float(TINY.vocab_size)).log().item(), rel=0.02)


def test_impossible_shapes_are_refused():
    with pytest.raises(ValueError, match="multiple of num_attention_heads"):
        Transformer(replace(TINY, num_attention_heads=3))
    with pytest.raises(ValueError, match="longer than max_position_embeddings=16"):
        Transformer(TINY)(batch(TINY, 17), batch(TINY, 17))
