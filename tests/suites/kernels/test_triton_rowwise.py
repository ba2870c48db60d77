"""Triton's row-wise and pointwise kernels, interpreted: forward and every gradient against float64 PyTorch.

An error is |ours - float64| over the largest |float64| of the same tensor, or over the terms of a gradient
where those cancel (a norm of one column; a softmax of one 1 and else zeros). And what the kernels take of
five GPUs, by their compilers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_errors import EVERY_TARGET, errors, results
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from harness.instruments.triton_kernels.launch import launch
from harness.instruments.triton_kernels.targets import NVIDIA, Compilation, CompilationFailed, usage
from harness.records import Unavailable
from suites.kernels.operations import OPERATIONS
from suites.kernels.triton import FUNCTIONS, MODULES
from suites.training.triton_kernels import softmax
from suites.training.triton_kernels.tiles import TILE_ELEMENTS, WIDEST_BLOCK, WIDEST_WITH_SUMS, tile

NAMES = ("softmax", "rms_norm", "layer_norm", "swiglu", "gelu_bias", "rotary", "pointwise")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""bf16: 2^-9 a rounding, and a gradient passes several."""
VECTORS = {"rms_norm": 1, "layer_norm": 2, "gelu_bias": 1}  # arguments of (D) behind x
MATRICES = {"softmax": 1, "swiglu": 2, "pointwise": 2}
EPSILON = 1e-5


def laid_out(values: Tensor, layout: str) -> Tensor:
    if layout == "transposed":
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "gaps":
        wide = values.new_zeros(*values.shape[:-1], 2 * values.shape[-1])
        wide[..., ::2] = values
        return wide[..., ::2]
    return values


def leaf(values: Tensor, dtype: torch.dtype, layout: str = "rows") -> Tensor:
    return laid_out(values.to(dtype), layout).detach().requires_grad_()


def make_inputs(
    name: str, rows: int, columns: int, dtype: torch.dtype, layout: str = "rows", scale: float = 1.0
) -> tuple[Tensor, ...]:
    if name == "rotary":
        size = 2 * columns
        x = torch.randn(2, 3, rows, size) * scale
        tables = torch.randn(2, rows, size).to(dtype)
        return leaf(x.transpose(1, 2).contiguous().transpose(1, 2), dtype, layout), tables[0], tables[1]
    matrices = [torch.randn(rows, columns) * scale for _ in range(MATRICES.get(name, 1))]
    vectors = [torch.randn(columns) for _ in range(VECTORS.get(name, 0))]
    return *(leaf(one, dtype, layout) for one in matrices), *(leaf(one, dtype) for one in vectors)


def cancelling(name: str, inputs: tuple[Tensor, ...], upstream: Tensor) -> float:
    """Return how large the terms are whose difference a gradient is; 0 for operations without such."""
    if name == "softmax":
        return float((torch.softmax(inputs[0], -1) * upstream).abs().max())
    if name not in ("rms_norm", "layer_norm"):
        return 0.0
    x = inputs[0] - inputs[0].mean(-1, keepdim=True) if name == "layer_norm" else inputs[0]
    steepest = torch.rsqrt(x.square().mean(-1) + EPSILON).max()
    return float(upstream.abs().max() * max(float(inputs[1].abs().max() * steepest), 1.0))


def worst_error(name: str, inputs: tuple[Tensor, ...], layout: str = "rows") -> float:
    upstream = laid_out(torch.randn(inputs[0].shape).to(inputs[0].dtype), layout)
    ours = results(FUNCTIONS[name], inputs, upstream)
    assert {one.dtype for one in ours} == {inputs[0].dtype}
    assert all(bool(one.isfinite().all()) for one in ours)
    floor = cancelling(name, tuple(one.detach().double() for one in inputs), upstream.double())
    return max(errors(ours, OPERATIONS[name].eager, inputs, upstream, [0.0, *[floor] * (len(ours) - 1)]))


@pytest.mark.parametrize("name", NAMES)
@given(
    rows=st.sampled_from((1, 2, 7, 33, 150)),
    columns=st.integers(1, 200),
    dtype=st.sampled_from(tuple(TOLERANCE)),
    layout=st.sampled_from(("rows", "transposed", "gaps")),
    scale=st.sampled_from((1e-2, 1.0, 1e4)),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_forward_and_gradients_are_those_of_float64(name, rows, columns, dtype, layout, scale, seed):
    torch.manual_seed(seed)
    rows, columns = (min(rows, 40), min(columns, 40)) if name == "rotary" else (rows, columns)
    inputs = make_inputs(name, rows, columns, dtype, layout, scale)
    assert worst_error(name, inputs, layout) <= TOLERANCE[dtype]


@pytest.mark.parametrize("name", NAMES)
def test_edges(name: str) -> None:
    torch.manual_seed(1)
    for rows, columns in ((1, 1), (1, 129), (5, 1), (64, 128)):
        inputs = make_inputs(name, rows, min(columns, 65) if name == "rotary" else columns, torch.float32)
        assert worst_error(name, inputs) <= TOLERANCE[torch.float32], (rows, columns)


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm", "gelu_bias"])
def test_rows_wider_than_a_block_are_looped_over(name: str) -> None:
    torch.manual_seed(2)
    columns = WIDEST_BLOCK + 4097
    assert not tile(columns).whole
    assert worst_error(name, make_inputs(name, 5, columns, torch.float32)) <= 1e-5
    if "norm" in name:  # the backward pass alone is looped
        assert tile(WIDEST_WITH_SUMS + 1).whole
        assert worst_error(name, make_inputs(name, 3, WIDEST_WITH_SUMS + 1, torch.float32)) <= 1e-5


def test_softmax_of_masked_and_of_far_logits() -> None:
    """A block of nothing but -inf leaves no NaN behind, and logits far apart do not overflow."""
    masked = torch.randn(2, WIDEST_BLOCK + 10)
    masked[:, : TILE_ELEMENTS + 3] = -float("inf")
    for x in (masked, torch.tensor([[3e38, 0.0, -3e38], [-3e38, -3e38, -3e38]])):
        torch.testing.assert_close(softmax.softmax(x), torch.softmax(x.double(), -1).float())


@triton.jit
def copy_cast(x, y, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(y + at, tl.load(x + at).to(tl.bfloat16))


def test_bf16_is_rounded_as_on_a_gpu() -> None:
    """To nearest even, as PyTorch's own cast; the interpreter by itself cuts bits off."""
    x = torch.cat([torch.randn(60), torch.tensor([0.9999999, 1.00390625, float("inf"), -0.0])])
    y = torch.empty(64, dtype=torch.bfloat16)
    launch(copy_cast, (1,), x, y, COUNT=64)
    assert torch.equal(y, x.bfloat16())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODULES if name != "attention"])
def test_every_kernel_compiles_for_every_target_without_spills(name: str) -> None:
    """test_triton_attention.py has attention, by its head sizes."""
    for dtype, target in EVERY_TARGET:
        for compilation in MODULES[name].kernels(dtype):
            found = usage(compilation, target)
            assert 0 < found.registers <= (256 if target in NVIDIA else 512), compilation.name
            assert found.spilled_registers == 0 or name == "adamw", compilation.name
            assert found.target == target


def test_kernels_compile_after_the_interpreter_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    softmax.softmax(torch.randn(3, 5))
    assert usage(softmax.kernels("fp16")[0], "sm_80").registers > 0
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        tl.sum(1)


@triton.jit
def mistaken(x, BLOCK: tl.constexpr):
    """Add blocks of two sizes, which is wrong."""
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) + tl.arange(0, 2 * BLOCK))


def test_a_kernel_that_does_not_compile_is_named_in_one_line() -> None:
    broken = Compilation("mistaken", mistaken, {"x": "*fp32"}, {"BLOCK": 64})
    with pytest.raises(CompilationFailed, match=r"^kernel mistaken does not compile for sm_90: .*\Z"):
        usage(broken, "sm_90")


def test_what_cannot_be_compiled_is_reported() -> None:
    kernel = softmax.kernels("bf16")[0]
    with pytest.raises(ValueError, match="known are sm_80"):
        usage(kernel, "sm_75")
    with pytest.raises(ValueError, match="without type or value: WHOLE"):
        usage(kernel._replace(constexprs={"ROWS": 1, "BLOCK": 64}), "sm_90")
    with pytest.raises(Unavailable, match="TRITON_INTERPRET"):
        usage(kernel._replace(function=InterpretedFunction(copy_cast.fn)), "sm_90")
