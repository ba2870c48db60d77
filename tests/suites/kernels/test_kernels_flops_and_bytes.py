"""The operations of the kernels suite, their FLOPs and bytes and passes over memory counted otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_kernels import workload_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from suites.kernels.bound_call import leaves_of, make_inputs, tensors_of
from suites.kernels.operations import OPERATIONS
from suites.kernels.workload import Workload


class Elementwise(TorchDispatchMode):
    """Keeps the elements of every pointwise operation's result."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and "view" not in str(function) and "clone" not in str(function):
            self.sizes.append(result.numel())
        return result


def test_the_chain_has_the_operations_that_its_formula_counts():
    workload = Workload(**workload_of("pointwise", backward=False))
    inputs = make_inputs(OPERATIONS["pointwise"], workload, 0, torch.device("cpu"))
    with Elementwise() as counted:
        OPERATIONS["pointwise"].eager(*inputs)
    assert OPERATIONS["pointwise"].flops(workload) == sum(counted.sizes)


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("operation", ["matmul", "attention", "linear_cross_entropy", "linear_gelu"])
def test_products_are_those_that_torch_counts(operation, backward):
    workload = Workload(**workload_of(operation, backward=backward, causal=False))
    inputs = make_inputs(OPERATIONS[operation], workload, 0, torch.device("cpu"))
    with FlopCounterMode(display=False) as counted:
        outputs = OPERATIONS[operation].eager(*inputs)
        if backward:
            outputs.sum().backward()
    scores = 2 * workload.rows * workload.num_attention_heads * workload.seq_len * workload.head_size
    again = scores if operation == "attention" and backward else 0  # the fused backward has the scores again
    logits = workload.rows * workload.vocab_size * (6 if backward else 4)
    gelu = workload.rows * workload.intermediate_size * (24 if backward else 10)
    beside = {"linear_cross_entropy": logits, "linear_gelu": gelu}.get(operation, 0)
    assert OPERATIONS[operation].flops(workload) == counted.get_total_flops() + again + beside


def test_causal_attention_counts_half():
    causal, full = (Workload(**workload_of("attention", causal=one)) for one in (True, False))
    assert 2 * OPERATIONS["attention"].flops(causal) == OPERATIONS["attention"].flops(full)


READS_AGAIN = {  # which inputs, and whether its result, the backward pass reads
    "softmax": ((), True),
    "rms_norm": ((0, 1), False),
    "layer_norm": ((0, 1), False),
    "swiglu": ((0, 1), False),
    "gelu_bias": ((0, 1), False),
    "linear_gelu": ((0, 1, 2), False),
    "rotary": ((1, 2), False),
    "linear_cross_entropy": ((0, 1, 2), False),
    "pointwise": ((0, 1), False),
    "attention": ((0, 1, 2), True),
    "matmul": ((0, 1), False),
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("operation", READS_AGAIN)
def test_traffic_is_the_bytes_of_the_tensors_that_must_move(operation, dtype):
    operation_ = OPERATIONS[operation]
    workload = Workload(**workload_of(operation, dtype=dtype))
    inputs = make_inputs(operation_, workload, 0, torch.device("cpu"))
    (output,) = (one for one in tensors_of(operation_.eager(*inputs)))
    forward = [*tensors_of(inputs), *([output] if output.dim() else [])]
    again, result = READS_AGAIN[operation]
    backward = [*(inputs[i] for i in again), *leaves_of(inputs), *([output] if output.dim() else [])]
    backward += [output] if result else []
    whole = sum(one.nbytes for one in (*forward, *backward))
    assert operation_.bytes_moved(workload) == whole
    assert operation_.bytes_moved(replace(workload, backward=False)) == sum(one.nbytes for one in forward)


def test_traffic_of_what_has_no_backward_pass():
    adamw = Workload(**workload_of("adamw"))
    inputs = make_inputs(OPERATIONS["adamw"], adamw, 0, torch.device("cpu"))
    read = sum(one.nbytes for one in tensors_of(inputs[:-1]))
    written = read - sum(one.nbytes for one in inputs[1])
    assert OPERATIONS["adamw"].bytes_moved(adamw) == read + written
    copy = Workload(**workload_of("copy"))
    inputs = make_inputs(OPERATIONS["copy"], copy, 0, torch.device("cpu"))
    assert OPERATIONS["copy"].bytes_moved(copy) == sum(one.nbytes for one in inputs)
