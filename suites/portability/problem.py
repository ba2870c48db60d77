"""What is captured: a pure function of tensors, its inputs, and plain PyTorch's own way to call it.

The models of layers and training steps: this project's transformer, or a config.json's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.records import Unavailable
from suites.portability import graph
from suites.portability.graph import Forward, Problem
from suites.portability.workload import Workload
from suites.training.models import huggingface
from suites.training.models.fake_transformers import READ_VALUES
from suites.training.models.model import (
    EPSILON,
    NONE,
    Functions,
    PositionTensors,
    Transformer,
    TransformerBlock,
    causal_mask,
    explicit_attention,
    initialise,
    linear_cross_entropy,
    rotary_tables,
)
from suites.training.workload import ModelShape, llama

EXPERTS = "batched_mm"
"""How transformers computes experts in a captured step: it gathers each token's experts' weights, so that no
size depends on the routing (transformers.integrations.moe, batched_mm_experts_forward)."""


@contextmanager
def initialised_from(generator: torch.Generator) -> Iterator[None]:
    """Draw initial weights from a seed of `generator` inside the block, and leave torch's own state."""
    seed = int(torch.randint(2**31, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def shape_of(workload: Workload) -> ModelShape:
    """Return the shape of the project's transformer; raises `Unavailable` for an odd head size."""
    size = workload.hidden_size // workload.num_attention_heads
    if size % 2:
        raise Unavailable(
            f"rotary positions halve a head: hidden_size / num_attention_heads must be even, not {size}"
        )
    return llama(workload)


def adopted(workload: Workload) -> Workload:
    """Return the workload with its config's sizes and without dropout; raises `Unavailable`."""
    config = workload.hf_config
    if config is None:
        return workload
    if config.get("model_type") in READ_VALUES:
        raise Unavailable(
            f"model_type {config['model_type']!r}: its layers read values of the batch to choose what to "
            "compute, so no graph of fixed operations can be captured"
        )
    return huggingface.adopted(workload, config)


def model_of(workload: Workload, generator: torch.Generator, functions: Functions) -> nn.Module:
    """Return the model in the workload's type; its forward maps tokens and targets to the loss."""
    with initialised_from(generator):
        if workload.hf_config is None:
            own = {"linear_cross_entropy": linear_cross_entropy, **functions}
            model: Any = Transformer(shape_of(workload), "explicit", own)
        else:
            model = huggingface.build(workload.hf_config)
            if getattr(model.model.config, "_experts_implementation", None) is not None:
                model.model.set_experts_implementation(EXPERTS)
    return model.to(workload.torch_dtype).eval()  # type: ignore[no-any-return]


def problem_of(workload: Workload, seed: int, functions: Functions = NONE) -> Problem:
    """Return what the workload computes, with inputs from `seed`; `functions` replace operators."""
    generator = torch.Generator().manual_seed(seed)
    forward = FORWARDS[workload.operation](workload, generator, functions)
    if workload.passes == "forward":
        return _without_gradients(forward)
    if workload.operation == "training_step":
        output = torch.empty((), device="meta")  # the loss
    else:
        same = FORWARDS[workload.operation](workload, torch.Generator().manual_seed(seed), NONE)
        with torch.no_grad():
            output = same.function(*(one.to("meta") for one in same.inputs))
    differentiable = with_backward(forward, output, generator)
    if workload.passes == "backward":
        return differentiable
    return graph.with_update(differentiable, forward, generator)


def _without_gradients(forward: Forward) -> Problem:
    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        return (forward.function(*arguments),)

    def call() -> Sequence[Tensor]:
        with torch.no_grad():
            return function(*forward.inputs)

    return Problem(function, forward.inputs, ("output",), 0, lambda: call, forward)


def with_backward(forward: Forward, output: Tensor, generator: torch.Generator) -> Problem:
    """Return the output, like `output`, and the gradients of the named inputs.

    The upstream gradient of a loss is 1, any other is normal.
    """
    count = len(forward.names)
    upstream = () if output.dim() == 0 else (draw(generator, output.shape, output.dtype),)
    inputs = (*forward.inputs, *upstream)

    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        leaves = [one.detach().requires_grad_() for one in arguments[:count]]
        rest = arguments[count : len(forward.inputs)]
        result = forward.function(*leaves, *rest)
        gradients = torch.autograd.grad(result, leaves, arguments[len(forward.inputs) :] or None)
        return (result.detach(), *gradients)

    names = ("output", *(f"gradient {name}" for name in forward.names))
    return Problem(function, inputs, names, count, lambda: lambda: function(*inputs), forward)


def draw(
    generator: torch.Generator, size: Sequence[int], dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> Tensor:
    """Return normal values."""
    return (torch.randn(*size, generator=generator) * scale).to(dtype)


OF_ROWS: dict[str, tuple[dict[str, str], Callable[..., Tensor]]] = {
    "softmax": ({"x": "ND"}, lambda x_ND: F.softmax(x_ND, dim=-1)),
    "rms_norm": (
        {"x": "ND", "weight": "D"},
        lambda x_ND, weight_D: F.rms_norm(x_ND, weight_D.shape, weight_D, EPSILON),
    ),
    "matmul": ({"x": "ND", "weight": "DF"}, lambda x_ND, weight_DF: x_ND @ weight_DF),
    "swiglu": ({"gate": "ND", "up": "ND"}, lambda gate_ND, up_ND: F.silu(gate_ND) * up_ND),
}
"""Operators on rows, such as RMSNorm (arXiv 1910.07467) and SwiGLU's product (arXiv 2002.05202).

By name, the shapes of their inputs, and plain PyTorch.
"""


def of_rows(workload: Workload, generator: torch.Generator, functions: Functions) -> Forward:
    """Return one of `OF_ROWS`."""
    shapes, plain = OF_ROWS[workload.operation]
    sizes = {"N": rows(workload), "D": workload.hidden_size, "F": workload.intermediate_size}
    inputs = tuple(
        draw(generator, [sizes[letter] for letter in shape], workload.torch_dtype)
        for shape in shapes.values()
    )
    return Forward(functions.get(workload.operation, plain), inputs, tuple(shapes))


def attention(workload: Workload, generator: torch.Generator, functions: Functions) -> Forward:
    """Return causal attention as it is written down, of (B, H, T, K)."""
    heads = workload.num_attention_heads
    size = (workload.micro_batch_size, heads, workload.seq_len, workload.hidden_size // heads)
    qkv = tuple(draw(generator, size, workload.torch_dtype) for _ in range(3))

    def function(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        if "attention" in functions:
            return functions["attention"](q_BHTK, k_BHTK, v_BHTK, True)  # type: ignore[no-any-return]
        masked_TS = causal_mask(q_BHTK.shape[2], q_BHTK.device)
        return explicit_attention(q_BHTK, k_BHTK, v_BHTK, masked_TS, 0.0)

    return Forward(function, qkv, ("q", "k", "v"))


def cross_entropy(workload: Workload, generator: torch.Generator, functions: Functions) -> Forward:
    """Return the output layer's product and the mean cross-entropy of its logits."""
    x_ND = draw(generator, (rows(workload), workload.hidden_size), workload.torch_dtype)
    size = (workload.vocab_size, workload.hidden_size)
    weight_VD = draw(generator, size, workload.torch_dtype, 1 / math.sqrt(workload.hidden_size))
    targets_N = torch.randint(workload.vocab_size, (rows(workload),), generator=generator)
    function = functions.get("linear_cross_entropy", linear_cross_entropy)
    return Forward(function, (x_ND, weight_VD, targets_N), ("x", "weight"))


def block(workload: Workload, generator: torch.Generator, functions: Functions) -> Forward:
    """Return one layer of the transformer: its input and every weight get gradients."""
    shape = replace(shape_of(workload), num_hidden_layers=1)
    with initialised_from(generator):
        layer = TransformerBlock(shape, "explicit", functions).apply(initialise).to(workload.torch_dtype)
    cos_TK, sin_TK = (
        one.to(workload.torch_dtype) for one in rotary_tables(workload.seq_len, shape.head_size)
    )
    size = (workload.micro_batch_size, workload.seq_len, workload.hidden_size)
    x_BTD = draw(generator, size, workload.torch_dtype)

    def arguments(x_BTD: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> tuple[object, ...]:
        return x_BTD, PositionTensors(cos_TK, sin_TK, causal_mask(x_BTD.shape[1], x_BTD.device))

    return of_module(layer, (x_BTD,), (cos_TK, sin_TK), ("x",), arguments)


def training_step(workload: Workload, generator: torch.Generator, functions: Functions) -> Forward:
    """Return the model's loss: every parameter gets a gradient."""
    model = model_of(workload, generator, functions)
    size = (workload.micro_batch_size, workload.seq_len + 1)
    drawn_BT = torch.randint(workload.vocab_size, size, generator=generator)
    tokens_BT, targets_BT = drawn_BT[:, :-1].contiguous(), drawn_BT[:, 1:].contiguous()
    return of_module(model, (), (tokens_BT, targets_BT), (), lambda *given: given)


def of_module(
    module: nn.Module,
    leaves: tuple[Tensor, ...],
    fixed: tuple[Tensor, ...],
    names: tuple[str, ...],
    arguments: Callable[..., tuple[object, ...]],
) -> Forward:
    """Return a module as a function of its weights, `leaves`, its buffers and `fixed`, in that order.

    `arguments(*leaves, *fixed)` makes the module's own arguments. Tied weights are one input.
    """
    weights = dict(module.named_parameters())
    buffers = dict(module.named_buffers())

    def function(*given: Tensor) -> Tensor:
        count = len(weights)
        state = dict(zip(weights, given[:count], strict=True))
        after = count + len(leaves)
        state |= dict(zip(buffers, given[after : after + len(buffers)], strict=True))
        own = arguments(*given[count:after], *given[after + len(buffers) :])
        return torch.func.functional_call(module, state, own)  # type: ignore[no-any-return]

    inputs = (*(one.detach() for one in weights.values()), *leaves, *buffers.values(), *fixed)
    return Forward(function, inputs, (*weights, *names))


def rows(workload: Workload) -> int:
    """Return the rows of a row-wise operation (N)."""
    return workload.micro_batch_size * workload.seq_len


FORWARDS: dict[str, Callable[[Workload, torch.Generator, Functions], Forward]] = {
    **dict.fromkeys(OF_ROWS, of_rows),
    "attention": attention,
    "cross_entropy": cross_entropy,
    "block": block,
    "training_step": training_step,
}
