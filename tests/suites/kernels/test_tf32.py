"""TF32 for fp32 products: on in forward and backward passes, off again afterwards."""

from typing import ClassVar

import pytest
import torch
from small_kernels import HOST, subject_of

from harness.records import Unavailable
from suites.kernels import tf32
from suites.kernels.bound_call import Session


class Watched(torch.autograd.Function):
    """The identity, which notes in each pass whether products may be in TF32."""

    seen: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx, x):
        Watched.seen.append(torch.backends.cuda.matmul.allow_tf32)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Watched.seen.append(torch.backends.cuda.matmul.allow_tf32)
        return gradient


def test_products_are_in_tf32_in_both_passes_and_no_longer(monkeypatch):
    session = Session(tf32.apply(subject_of("training_step", num_hidden_layers=2)))
    Watched.seen.clear()
    model = type(session.trainer.model)
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *inputs: Watched.apply(forward(*inputs)))
    session.work()
    assert Watched.seen == [True, True]
    with pytest.raises(ZeroDivisionError), tf32.products_in_tf32():
        raise ZeroDivisionError
    assert torch.backends.cuda.matmul.allow_tf32 is False


@pytest.mark.parametrize(
    ("operation", "changes", "said"),
    [
        ("softmax", {}, "no matrix products"),
        ("attention", {"dtype": "bf16"}, "bf16"),
        ("training_step", {"num_hidden_layers": 2, "part": "attention"}, "attention alone is to change"),
    ],
)
def test_where_it_changes_nothing_it_is_unavailable(operation, changes, said):
    with pytest.raises(Unavailable, match=said):
        tf32.apply(subject_of(operation, **changes))
    assert "NVIDIA" in (tf32.unavailable(HOST) or "")
