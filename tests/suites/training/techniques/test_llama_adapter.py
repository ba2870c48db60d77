"""LLaMA-Adapter against its formula in float64, what it trains, and its bytes against real steps."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from random_steps import assert_as_measured
from small_steps import GPT, LLAMA
from torch import nn

from harness.records import Unavailable
from suites.training.correctness import check
from suites.training.dry_run.dry_run import among_ranks
from suites.training.models.model import EPSILON, rotary
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

GROUPED = replace(LLAMA, num_key_value_heads=2)


def adapter(**settings):
    return {"llama_adapter": settings}


SET_UPS = {
    "version 1": [adapter()],
    "version 2": [adapter(version=2)],
    "every layer, one prompt": [adapter(start_layer=0, prompt_length=1), "attention"],
    "checkpointed": [adapter(version=2), "attention", "activation_checkpointing"],
    "autocast": [adapter(version=2), "mixed_precision"],
    "bf16 gradients": [adapter(), {"mixed_precision": {"gradients": "bf16"}}],
    "all in bf16": [adapter(version=2), "bf16_states", "attention"],
    "bf16 base": [adapter(base="bf16")],
    "nf4": [adapter(version=2, base="nf4"), "attention"],
    "nf4, maxima in fp32": [adapter(base="nf4", double_quantization=False)],
    "int8": [adapter(base="int8"), "activation_checkpointing"],
    "8-bit states": [adapter(version=2), {"optimizer": {"name": "adamw_8bit"}}],
    "updated in the backward pass": [adapter(), "optimizer_in_backward"],
    "loss in chunks": [adapter(version=2), {"loss": {"chunks": 4, "chunked": "recompute"}}],
}


@pytest.mark.parametrize("name", SET_UPS)
def test_a_dry_run_is_as_measured(name):
    assert_as_measured(build_step(GROUPED, SET_UPS[name]))


def test_a_dry_run_that_repeats_layers_is_as_measured():
    assert_as_measured(build_step(replace(GPT, num_hidden_layers=9), [adapter(start_layer=3, version=2)]))


@pytest.mark.parametrize("given", [["fsdp2"], ["fsdp2", "mixed_precision"], ["zero"]], ids=str)
def test_a_dry_run_of_a_rank_is_as_measured(given):
    step = build_step(replace(LLAMA, dp_size=4), [adapter(version=2), *given])
    with among_ranks(step):
        assert_as_measured(step)


def formula(model, tokens, targets, start, version):
    """Compute the loss from the weights alone; every layer of `model` is Llama's, in float64."""
    weights = dict(model.named_parameters())

    def linear(name, x):
        if version == 1:
            return x @ weights[f"{name}.weight"].T
        own = (weights[f"{name}.{part}"] for part in ("base.weight", "bias", "scale"))
        weight, bias, scale = own
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


@pytest.mark.parametrize("attention", ["explicit", "flash"])
@pytest.mark.parametrize("version", [1, 2])
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
        ours = [one for one in trainer.plain.parameters() if one.requires_grad]
        before = [one.detach().clone() for one in trainer.plain.parameters()]
        for _ in range(2):  # gates are zero at first, and so are the prompts' first gradients
            trainer.train_step()
        pairs = zip(before, trainer.plain.parameters(), strict=True)
        assert sum(one.numel() for one in ours) == elements
        assert [torch.equal(*pair) for pair in pairs] == [
            not one.requires_grad for one in trainer.plain.parameters()
        ]
        assert sum(one.nbytes for one in trainer.optimizer.state_tensors() if one.numel() > 1) == 8 * elements


@pytest.mark.parametrize(
    "given", [[adapter(base="nf4")], [adapter(base="int8")], [adapter(), "bf16_states"]], ids=str
)
def test_version_1_learns_in_bf16_at_the_papers_learning_rate(given):
    """With AdamW's own, ten updates change the loss by less than bf16 rounds it."""
    check(build_step(LLAMA, given))


def test_a_learning_rate_that_is_given_stays():
    assert build_step(replace(LLAMA, learning_rate=0.5), [adapter()]).workload.learning_rate == 0.5


def test_training_starts_from_the_base():
    ours, base = (Trainer(build_step(LLAMA, given)) for given in ([adapter(version=2)], []))
    torch.testing.assert_close(ours.train_step(), base.train_step())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([adapter(start_layer=4)], "start_layer=4: allowed are 0 to the last layer, 3"),
        ([adapter(prompt_length=0)], "prompt_length=0: expected a whole number of at least 1"),
        ([adapter(version=3)], "version=3: expected one of 1, 2"),
        ([adapter(base="nf4"), "zero"], "zero shards parameters, and a base in nf4 consists of buffers"),
        ([adapter(version=2), {"loss": {"fused": True}}], "fused needs an output layer that is a plain"),
        ([adapter(), "lora"], "each of them trains its own adapters alone"),
        ([adapter(), "tensor_parallel"], "prompts have all heads"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused_in_one_line(given, words):
    with pytest.raises((Unavailable, ValueError)) as caught:
        Trainer(build_step(LLAMA, given)).train_step()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_attention_of_another_model_is_refused():
    model = "suites.published.models:litgpt_llama"
    with pytest.raises(Unavailable, match="llama_adapter: prompts are built for"):
        build_step(replace(LLAMA, model=model), [adapter()])
