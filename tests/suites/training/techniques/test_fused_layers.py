"""The technique `fused_layers`: the gradients of plain layers, and what norms and gated MLPs keep."""

import copy

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="the extra `hf` brings it")

from harness.records import Unavailable  # noqa: E402
from suites.training.models.huggingface import LanguageModel  # noqa: E402
from suites.training.techniques.fused_layers import put_into_layers  # noqa: E402

SIZES = {"vocab_size": 60, "hidden_size": 24, "intermediate_size": 56, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 12}

MODELS = {"Llama": False, "Qwen3": True, "Gemma2": False, "Olmo2": True}
"""Transformers' names, and whether heads have norms."""


def model_of(name):
    config = getattr(transformers, f"{name}Config")(**SIZES, pad_token_id=0)
    torch.manual_seed(1)
    return getattr(transformers, f"{name}ForCausalLM")(config)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_are_those_of_plain_layers(name, dtype):
    plain = model_of(name).to(dtype)
    fused = put_into_layers(copy.deepcopy(plain), None)
    tokens = torch.randint(1, 60, (3, 11))
    wanted, found = (one(input_ids=tokens, labels=tokens).loss for one in (plain, fused))
    wanted.backward()
    found.backward()
    torch.testing.assert_close(found, wanted)
    bound = {"rtol": 1e-6, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 0.1, "atol": 0.01}
    for one, other in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, **bound)


def test_a_layer_keeps_inputs_alone():
    """By hand, of a norm its input; of a gated MLP its input, gate, up and their product, all in bf16."""
    layer = model_of("Llama").to(torch.bfloat16).model.layers[0]
    put_into_layers(layer, None)
    x_BTD = torch.randn(4, 16, 24, dtype=torch.bfloat16, requires_grad=True)
    weights = {one.untyped_storage().data_ptr() for one in layer.parameters()}

    def kept_B(module):
        kept = {}

        def keep(one):
            kept[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
            return one

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            result = module(x_BTD)
        del result
        return sum(size_B for at, size_B in kept.items() if at not in weights)

    tokens = 4 * 16
    assert kept_B(layer.input_layernorm) == 2 * tokens * 24
    assert kept_B(layer.mlp) == 2 * tokens * (24 + 3 * 56)


def test_what_has_no_such_layers_and_what_liger_does_not_know_is_refused():
    with pytest.raises(Unavailable, match="does not change models of type cohere"):
        put_into_layers(LanguageModel(model_of("Cohere"), 2, {}), None)
    with pytest.raises(Unavailable, match="no RMSNorm and no gated MLP"):
        put_into_layers(nn.Sequential(nn.Linear(3, 3), nn.GELU()), None)
