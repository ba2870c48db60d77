"""A mixture of experts: equal to each token passing its experts one by one; its dry run as measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small_steps import CUDA, HOST, LLAMA, TECHNIQUES

from harness.records import Unavailable
from suites.memory.live_bytes import measure_peak
from suites.training.correctness import check
from suites.training.dry_run.dry_run import dry_run
from suites.training.models.mixture import GroupedProduct, MixtureMLP
from suites.training.models.model import SwiGLUMLP, Transformer
from suites.training.techniques import build_step

MIXTURE = replace(
    LLAMA,
    num_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=96,
    shared_expert_intermediate_size=40,
)


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
def test_the_product_is_torchs_grouped_one(dtype):
    """One group is empty."""
    counts = [5, 0, 11]
    x_MD, weight_EFD = torch.randn(16, 32, dtype=dtype), torch.randn(3, 24, 32, dtype=dtype)
    ends = torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    above_MF, found = torch.randn(16, 24, dtype=dtype), []
    for product in (
        lambda x, weight: GroupedProduct.apply(x, weight, counts, 1.0),
        lambda x, weight: F.grouped_mm(x, weight.transpose(1, 2), offs=ends),
    ):
        given = [one.clone().requires_grad_() for one in (x_MD, weight_EFD)]
        result = product(*given)
        result.backward(above_MF)
        found.append([result, *(one.grad for one in given)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_scaled_gradient_is_that_of_the_weights_alone():
    grads = []
    for scale in (1.0, 0.25):
        x_MD, weight_EFD = torch.ones(4, 2, requires_grad=True), torch.ones(1, 3, 2, requires_grad=True)
        GroupedProduct.apply(x_MD, weight_EFD, [4], scale).sum().backward()
        grads.append((x_MD.grad, weight_EFD.grad))
    assert torch.equal(grads[1][0], grads[0][0])
    assert torch.equal(grads[1][1], grads[0][1] / 4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"moe_intermediate_size": None},
        {"shared_expert_intermediate_size": None, "num_experts_per_tok": 1},
    ],
)
def test_a_shape_knows_its_parameters(changes):
    shape = replace(MIXTURE, **changes).shape
    with torch.device("meta"):
        model = Transformer(shape)
    assert sum(one.numel() for one in model.parameters()) == shape.parameters
    of_experts = [one for name, one in model.named_parameters() if ".experts." in name]
    assert sum(one.numel() for one in of_experts) == shape.expert_parameters


def test_experts_with_biases_are_refused():
    with pytest.raises(ValueError, match="without biases"):
        Transformer(replace(MIXTURE, bias=True).shape)


SET_UPS = ["", "full", "selective", "autocast flash", "bf16_grads", "fp32_grads flash full"]


@pytest.mark.parametrize("techniques", SET_UPS)
def test_a_dry_run_with_equal_shares_is_what_a_real_routing_takes_on_one_device(techniques):
    """All experts are on it, so it does not matter which have the tokens."""
    step = build_step(replace(MIXTURE, vocab_size=2000), [TECHNIQUES[one] for one in techniques.split()])
    check(step)
    measured_B = measure_peak(step, torch.device("cpu"), steady_steps=1).peaks[-1].live_B
    assert dry_run(step, HOST).peak_B == pytest.approx(measured_B, rel=1e-5)


def test_each_choice_of_an_expert_adds_its_activations():
    """By hand, in fp32: the expert's input and result, its two products, SiLU and their product; then the
    choice, its place in the order and its token, of 8 B, and its probability and weight, of 4 B."""
    tokens, layers = MIXTURE.micro_batch_size * MIXTURE.seq_len, MIXTURE.num_hidden_layers

    def kept_B(per_token):
        workload = replace(
            MIXTURE, num_experts_per_tok=per_token, vocab_size=20_000, optimizer="sgd_momentum"
        )
        return dry_run(build_step(workload)).by_kind_B["activations"]

    one, two, three = map(kept_B, (1, 2, 3))
    assert three - two == two - one
    of_choice_B = (two - one) / (tokens * layers)
    assert of_choice_B == 4 * (2 * 64 + 4 * 96) + 3 * 8 + 2 * 4


def test_cuda_has_the_same_parameters_and_a_dry_run():
    on_cuda = dry_run(build_step(MIXTURE, ["mixed_precision", "attention"]), CUDA)
    assert on_cuda.by_kind_B["parameters"] >= 4 * MIXTURE.shape.parameters
    assert on_cuda.reserved_B >= on_cuda.peak_B


def test_it_is_not_compiled():
    with pytest.raises(Unavailable, match="reads how many tokens each expert has"):
        build_step(MIXTURE, ["compile"])
