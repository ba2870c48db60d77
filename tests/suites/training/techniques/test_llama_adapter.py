"""LLaMA-Adapter against its formula in float64, and what it trains."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small_steps import GPT, LLAMA
from torch import nn

from harness.records import Unavailable
from suites.training.correctness import check
from suites.training.models.model import EPSILON, rotary
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

GROUPED = replace(LLAMA, num_key_value_heads=2)


def adapter(**settings):
    return {"llama_adapter": settings}


def formula(model, tokens, targets, start, version):
    """Compute the loss from the weights alone; every layer of `model` is Llama's, in float64."""
    weights = dict(model.named_parameters())

    def linear(name, x):
        if version == 1:
            return x @ weights[f"{name}.weight"].T
        weight, bias, scale = (weights[f"{name}.{part}"] for part in ("base.weight", "bias", "scale"))
        return scale * (x @ weight.T + bias)

    def norm(name, x):
        return x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weights[f"{name}.weight"]

    def mixed(q, k, v, mask):
        scores = torch.einsum("bhtk,bhsk->bhts", q, k) / q.shape[-1] ** 0.5
        return torch.einsum("bhts,bhsk->bhtk", scores.masked_fill(mask, -torch.inf).softmax(-1), v)

    def heads(x):
        return x.unflatten(-1, (-1, model.shape.head_size)).transpose(-3, -2)

    def repeated(x):
        return x.repeat_interleave(model.shape.num_attention_heads // x.shape[1], 1)

    length = tokens.shape[1]
    tables = model.cos_TK[:length], model.sin_TK[:length]
    later = torch.ones(length, length).triu(1).bool()
    x = weights["token_embedding.weight"][tokens]
    for layer in range(model.shape.num_hidden_layers):
        at = f"blocks.{layer}"
        normal = norm(f"{at}.attention_norm", x)
        q, k, v = (heads(linear(f"{at}.attention.{part}", normal)) for part in ("query", "key", "value"))
        q, k = rotary(q, *tables), rotary(k, *tables)
        result = mixed(q, repeated(k), repeated(v), later)
        if layer >= start:
            prompts = weights[f"{at}.attention.prompts.prompts_LD"].expand(len(tokens), -1, -1)
            k, v = (repeated(heads(linear(f"{at}.attention.{part}", prompts))) for part in ("key", "value"))
            gates = weights[f"{at}.attention.prompts.gate_H11"]
            result = result + gates * mixed(q, k, v, torch.tensor(False))
        x = x + linear(f"{at}.attention.output", result.transpose(1, 2).flatten(2))
        normal = norm(f"{at}.mlp_norm", x)
        gated = F.silu(linear(f"{at}.mlp.gate", normal)) * linear(f"{at}.mlp.up", normal)
        x = x + linear(f"{at}.mlp.down", gated)
    logits = linear("head", norm("norm", x))
    return -logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).mean()


@pytest.mark.parametrize(("version", "attention"), [(1, "explicit"), (2, "flash")])
def test_loss_and_gradients_are_those_of_the_formula(version, attention):
    given = [adapter(version=version, start_layer=1), {"attention": {"kernel": attention}}]
    trainer = Trainer(build_step(replace(GROUPED, num_hidden_layers=3), given))
    model = trainer.plain.double()
    torch.manual_seed(1)
    adapters = {name: one for name, one in model.named_parameters() if one.requires_grad}
    for one in adapters.values():
        nn.init.normal_(one)
    tokens, targets = trainer.text_batch()
    model.loss = lambda x, targets: F.cross_entropy(model.head(x).flatten(0, 1), targets.flatten())
    loss, expected = model(tokens, targets), formula(model, tokens, targets, 1, version)
    torch.testing.assert_close(loss, expected)
    found = torch.autograd.grad(loss, list(adapters.values()))
    torch.testing.assert_close(found, torch.autograd.grad(expected, list(adapters.values())))


def test_version_1_learns_in_bf16_at_the_papers_learning_rate():
    """With AdamW's own, ten updates change the loss by less than bf16 rounds it."""
    check(build_step(LLAMA, [adapter(), "bf16_states"]))


@pytest.mark.parametrize(("workload", "biases"), [(LLAMA, 0), (GPT, 1)], ids=["llama", "gpt"])
def test_adapters_alone_are_trained(workload, biases):
    """Version 2 trains a scale and a bias per result of a linear layer, and the norms."""
    layers, size, wide = workload.num_hidden_layers, workload.hidden_size, workload.intermediate_size
    prompts = (layers - 2) * (5 * size + workload.num_attention_heads)
    norms = (2 * layers + 1) * (1 + biases) * size
    mlp = wide * (2 if workload.mlp == "swiglu" else 1) + size
    results = layers * (4 * size + mlp) + workload.vocab_size
    for version, elements in {1: prompts, 2: prompts + norms + 2 * results}.items():
        trainer = Trainer(build_step(workload, [adapter(version=version, prompt_length=5)]))
        trainer.train_step()
        assert sum(one.numel() for one in trainer.plain.parameters() if one.requires_grad) == elements
        assert sum(one.nbytes for one in trainer.optimizer.state_tensors() if one.numel() > 1) == 8 * elements


def test_a_fused_loss_of_an_output_layer_with_scales_is_refused():
    with pytest.raises(Unavailable, match="fused needs an output layer that is a plain"):
        Trainer(build_step(LLAMA, [adapter(version=2), {"loss": {"fused": True}}])).train_step()
