"""The technique `loss`: its losses in float64, and how many of its logits exist at a time."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from random_steps import assert_as_measured
from small_steps import HOST, LLAMA
from torch import nn

from harness.records import Unavailable
from suites.training.dry_run.dry_run import dry_run
from suites.training.models.head_loss import (
    HeadLoss,
    compiled_cross_entropy,
    cross_entropy,
    fused_linear_cross_entropy,
    generated,
    rows_at_once,
)
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

SHORT = replace(LLAMA, num_hidden_layers=2)


def test_as_many_logits_exist_as_a_scheme_says():
    """Whole logits take three tensors in the backward pass: the log-softmax, and two gradients.

    With gradients in the place of logits, fms-acceleration's published runs of PowerLM-3b (LoRA, 8 × 4,096
    tokens) take 33.153 and 26.562 GB: 4.09 bytes per logit, of four in fp32.
    """

    @cache
    def peak_B(**settings):
        large = {"vocab_size": 8000, "seq_len": 256, "optimizer": "sgd_momentum"}
        return dry_run(build_step(replace(SHORT, **large), [{"loss": settings}]), HOST).peak_B

    logits_B = SHORT.micro_batch_size * 256 * 8000 * 4
    assert peak_B() - peak_B(chunks=8, chunked="recompute") > 1.2 * logits_B
    assert peak_B(keep_logits="model") - peak_B() == pytest.approx(logits_B, rel=1e-3)
    assert peak_B() - peak_B(chunked="in_place") == pytest.approx(logits_B, rel=0.02)
    assert peak_B() - peak_B(compiled=True) == pytest.approx(logits_B, rel=0.1)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("chunked", ["loss", "output", "recompute", "in_place"])
@pytest.mark.parametrize("chunks", [1, 3])
def test_losses_and_gradients_are_those_of_plain_cross_entropy(chunked, chunks, compiled):
    torch.manual_seed(1)
    head = nn.Linear(6, 11, bias=True)
    x_BTD = torch.randn(3, 7, 6, requires_grad=True)
    targets_BT = torch.randint(11, (3, 7))
    wanted = F.cross_entropy(head(x_BTD).flatten(0, 1), targets_BT.flatten())
    inputs = [x_BTD, *head.parameters()]
    expected = torch.autograd.grad(wanted, inputs)
    head.forward = HeadLoss(head, chunked, chunks, compiled=compiled)
    found = head.forward.run(lambda: head(x_BTD), targets_BT)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, inputs), expected)


@pytest.mark.slow
def test_a_compiled_loss_keeps_what_inductor_keeps():
    """Its logits in their own type and a few numbers per row; the gradients are in that type, too."""

    def kept_B(loss):
        logits_NV = torch.randn(96, 3000, dtype=torch.bfloat16, requires_grad=True)
        kept = {}

        def keep(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            value = loss(logits_NV, torch.arange(96), torch.float32)
        (gradient_NV,) = torch.autograd.grad(value, logits_NV)
        assert gradient_NV.dtype == torch.bfloat16
        return sum(kept.values()), gradient_NV

    (plain_B, wanted), (inductor_B, theirs), (ours_B, ours) = (
        kept_B(torch.manual_seed(3) and loss) for loss in (cross_entropy, generated(), compiled_cross_entropy)
    )
    assert plain_B > 96 * 3000 * 4
    assert ours_B == pytest.approx(inductor_B, abs=96 * 16)
    torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(theirs, wanted)


@pytest.mark.parametrize(("tokens", "size", "vocab"), [(50, 8, 40), (64, 16, 16), (7, 4, 90)])
def test_the_fused_loss_has_the_gradients_of_float64(tokens, size, vocab):
    torch.manual_seed(2)
    x_ND, weight_VD = torch.randn(tokens, size), torch.randn(vocab, size)
    targets_N = torch.randint(vocab, (tokens,))
    wide = [x_ND.double().requires_grad_(), weight_VD.double().requires_grad_()]
    (3 * F.cross_entropy(wide[0] @ wide[1].t(), targets_N)).backward()
    own = [x_ND.requires_grad_(), weight_VD.requires_grad_()]
    loss = fused_linear_cross_entropy(*own, targets_N)
    (3 * loss).backward()
    for one, exact in zip(own, wide, strict=True):
        torch.testing.assert_close(one.grad.double(), exact.grad, rtol=1e-4, atol=1e-6)
    assert 1 <= rows_at_once(tokens, size, vocab) <= tokens
    assert rows_at_once(4096 * 4, 4096, 32000) == 2048  # the example in Liger's source


HF = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
HF |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}


CHANGED = {
    "llama": {},
    "granite": {"logits_scaling": 4.0},
    "gemma2": {"head_dim": 8, "final_logit_softcapping": 0.5, "query_pre_attn_scalar": 8},
}


@pytest.mark.parametrize("kind", CHANGED)
def test_losses_of_models_that_change_their_logits_or_none_are_those_of_transformers(kind):
    pytest.importorskip("transformers")
    workload = replace(SHORT, hf_config={**HF, "model_type": kind, **CHANGED[kind]})
    plain = Trainer(build_step(workload))
    expected = [float(plain.train_step()) for _ in range(3)]  # gradients, too, from the second on
    for settings in ({"chunks": 2}, {"fused": True}, {"chunked": "in_place"}):
        step = build_step(workload, [{"loss": settings}])
        trainer = Trainer(step)
        assert [float(trainer.train_step()) for _ in range(3)] == pytest.approx(expected, rel=1e-5)
        if kind == "llama" and "chunked" not in settings:
            assert_as_measured(step)


def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused():
    """FalconH1 multiplies its logits by lm_head_multiplier."""
    pytest.importorskip("transformers")
    head = nn.Linear(6, 11)
    head.forward = HeadLoss(head, "loss")
    with pytest.raises(Unavailable, match="changes its logits"):
        head.forward.run(lambda: 0.5 * head(torch.randn(1, 7, 6)), torch.zeros(1, 7, dtype=torch.int64))
