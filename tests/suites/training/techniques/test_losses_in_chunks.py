"""The technique `loss`: its losses in float64, its logits counted, its bytes against real steps."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from random_steps import assert_as_measured
from small_steps import GPT, HOST, LLAMA
from torch import nn

from harness.records import Unavailable
from suites.training.dry_run.dry_run import dry_run
from suites.training.models.head_loss import HeadLoss, fused_linear_cross_entropy, rows_at_once
from suites.training.techniques import build_step
from suites.training.trainer import Trainer

SHORT = replace(LLAMA, num_hidden_layers=2)

SETTINGS = [
    {},
    {"chunks": 4, "chunked": "loss"},
    {"chunks": 5},
    {"chunks": 4, "chunked": "recompute"},
    {"dtype": "bf16"},
    {"keep_logits": "model"},
    {"keep_logits": "fp32", "chunks": 2, "chunked": "loss"},
    {"fused": True},
]


@pytest.mark.parametrize("further", [[], ["mixed_precision", "activation_checkpointing"]], ids=str)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_dry_run_is_as_measured(settings, further):
    assert_as_measured(build_step(SHORT, [{"loss": settings}, *further]))


def test_tied_weights_and_micro_batches_too():
    step = replace(GPT, num_hidden_layers=2, gradient_accumulation_steps=2)
    for settings in ({"chunks": 4, "chunked": "recompute"}, {"keep_logits": "model"}, {"fused": True}):
        assert_as_measured(build_step(step, [{"loss": settings}]))


def peak_B(settings, **changes):
    return dry_run(build_step(replace(SHORT, **changes), [{"loss": settings}]), HOST).peak_B


def test_logits_of_one_chunk_exist_at_a_time_only_where_they_are_recomputed():
    """Whole logits take two tensors in the backward pass: the log-softmax that is kept, and its gradient."""
    large = {"vocab_size": 8000, "seq_len": 256, "optimizer": "sgd_momentum"}
    logits_B = SHORT.micro_batch_size * 256 * 8000 * 4
    whole, chunked = peak_B({}, **large), peak_B({"chunks": 8, "chunked": "recompute"}, **large)
    assert whole - chunked > 1.2 * logits_B
    assert peak_B({"keep_logits": "model"}, **large) - whole == pytest.approx(logits_B, rel=1e-3)


@pytest.mark.parametrize("chunked", ["loss", "output", "recompute"])
@pytest.mark.parametrize("chunks", [1, 3, 7])
def test_losses_and_gradients_are_those_of_plain_cross_entropy(chunked, chunks):
    torch.manual_seed(1)
    head = nn.Linear(6, 11, bias=True)
    x_BTD = torch.randn(3, 7, 6, requires_grad=True)
    targets_BT = torch.randint(11, (3, 7))
    wanted = F.cross_entropy(head(x_BTD).flatten(0, 1), targets_BT.flatten())
    inputs = [x_BTD, *head.parameters()]
    expected = torch.autograd.grad(wanted, inputs)
    head.forward = HeadLoss(head, chunked, chunks)
    found = head.forward.run(lambda: head(x_BTD), targets_BT)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, inputs), expected)


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


def test_rows_at_once_are_ligers():
    assert rows_at_once(4096 * 4, 4096, 32000) == 2048  # the example in Liger's source


def test_a_model_that_changes_its_logits_is_refused():
    """Gemma 2 caps its logits after the output layer: the loss would be capped in their place."""
    pytest.importorskip("transformers")
    config = {
        "model_type": "gemma2",
        "vocab_size": 60,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "final_logit_softcapping": 30.0,
    }
    step = build_step(replace(SHORT, hf_config=config), [{"loss": {"chunks": 2}}])
    with pytest.raises(Unavailable, match="changes its logits"):
        Trainer(step).train_step()


def test_a_hugging_face_models_loss_is_the_same_in_chunks():
    pytest.importorskip("transformers")
    config = {
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    workload = replace(SHORT, hf_config=config)
    plain = float(Trainer(build_step(workload)).train_step())
    for settings in ({"chunks": 5}, {"chunks": 5, "chunked": "recompute"}, {"fused": True}):
        step = build_step(workload, [{"loss": settings}])
        assert float(Trainer(step).train_step()) == pytest.approx(plain, rel=1e-6)
        assert_as_measured(step)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fused": True, "chunks": 8}, "fused chooses chunks and types itself"),
        ({"chunked": "recompute", "keep_logits": "model"}, "recompute keeps no logits"),
        ({"keep_logits": "fp32", "dtype": "bf16"}, "dtype=bf16 reads no fp32 logits"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings, words):
    with pytest.raises(Unavailable, match=words):
        build_step(LLAMA, [{"loss": settings}])
