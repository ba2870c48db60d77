"""Float8 products: their operands and gradients in float64, and their tolerance."""

from dataclasses import replace

import pytest
import torch
from small_steps import LLAMA

from harness.records import WrongResult
from suites.training.correctness import check
from suites.training.techniques import build_step
from suites.training.techniques.float8 import Product, Scaled

ONE_SEQUENCE = replace(LLAMA, micro_batch_size=1, seq_len=32, tie_word_embeddings=True)
"""It makes plain PyTorch's loss rise in between, and rounding multiplies there."""


def test_a_wrong_scale_of_gradients_is_caught():
    step = build_step(ONE_SEQUENCE, ["float8"])

    def scaled_up(model, resources):
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: 2 * gradient)
        return model

    with pytest.raises(WrongResult, match="the scale of gradients"):
        check(replace(step, wraps=(*step.wraps, scaled_up)))


def dequantized(scaled):
    return scaled.matrix.double() * scaled.inverse.double()


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float8_e4m3fn, 4), (torch.float8_e5m2, 3)])
def test_operands_are_rounded_to_their_significand(dtype, bits):
    torch.manual_seed(1)
    matrix = torch.randn(32, 48)
    off = (dequantized(Scaled(matrix, dtype)) - matrix).abs()
    assert bool((off <= matrix.abs() * 2.0**-bits + matrix.abs().max() * 1e-4).all())
    assert float(off.max()) > 0
    largest = matrix.abs() == matrix.abs().max()
    torch.testing.assert_close(
        dequantized(Scaled(matrix, dtype))[largest].float(), matrix[largest], rtol=1e-5, atol=0
    )


def test_a_product_and_its_gradients_are_those_of_rounded_operands():
    torch.manual_seed(2)
    x = torch.randn(2, 16, 32, requires_grad=True)
    weight = torch.randn(48, 32, requires_grad=True)
    gradient = torch.randn(2, 16, 48)
    result = Product.apply(x, weight)
    result.backward(gradient)
    x8, weight8 = dequantized(Scaled(x.detach().flatten(0, 1))), dequantized(Scaled(weight.detach()))
    gradient8 = dequantized(Scaled(gradient.flatten(0, 1), torch.float8_e5m2))
    for found, expected in (
        (result.flatten(0, 1), x8 @ weight8.t()),
        (x.grad.flatten(0, 1), gradient8 @ weight8),
        (weight.grad, gradient8.t() @ x8),
    ):
        torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=0.05)
