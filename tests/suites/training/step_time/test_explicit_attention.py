"""Attention from a score matrix: its operators against torch's own, its rate against published curves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode

from harness.config.code_fingerprint import ROOT
from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.search import refusal
from suites.training.step_time.constants import GpuCluster, StepConstants
from suites.training.step_time.gpu import gpu_of
from suites.training.step_time.questions import answers
from suites.training.step_time.seconds import step_s
from suites.training.step_time.setting import StepSetting, operators, scores_s

SHAPE = TransformerShape(
    num_hidden_layers=4, hidden_size=1024, num_attention_heads=8, num_key_value_heads=8, head_dim=128,
    intermediate_size=4096, vocab_size=1024,
)  # fmt: skip
VIEWS = ("view", "transpose", "expand", "detach", "t.default", "_unsafe_view", "alias")


def setting(program: str, seq_len: int = 4096, device: str = "h100_80gb") -> StepSetting:
    training = Training(seq_len=seq_len, program=program, attention="unfused")  # type: ignore[arg-type]
    gpu = gpu_of(device)
    assert gpu is not None
    return StepSetting(SHAPE, training, GpuCluster(gpu, 8, 50e9), StepConstants.read())


class ScoreTraffic(TorchDispatchMode):
    """Adds up the bytes of score matrices that operators read and write."""

    def __init__(self, scores: int) -> None:
        """Count tensors of so many elements."""
        super().__init__()
        self.scores, self.moved_B = scores, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and count."""
        result = function(*args, **(kwargs or {}))
        if not any(name in str(function) for name in VIEWS):
            tensors = [one for one in (*args, result) if isinstance(one, torch.Tensor)]
            self.moved_B += sum(one.nbytes for one in tensors if one.numel() == self.scores)
        return result


@contextmanager
def traffic(scores: int) -> Iterator[ScoreTraffic]:
    """Count the bytes of operators on scores within."""
    with ScoreTraffic(scores) as counted:
        yield counted


def test_operators_move_as_many_bytes_per_score_as_torchs():
    """As torch's explicit attention with an added causal mask runs them, forward and backward."""
    heads, length, size = 3, 64, 16
    scores = heads * length * length
    q, k, v = (torch.randn(heads, length, size, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    mask = torch.full((length, length), -1e4, dtype=torch.bfloat16).triu(1)
    with traffic(scores) as forward:
        out = torch.softmax(q @ k.transpose(1, 2) + mask, -1) @ v
    with traffic(scores) as backward:
        out.sum().backward()
    ours = operators(setting("torchtitan"))
    counted = [forward.moved_B / scores, backward.moved_B / scores]
    assert [2 * one.products + one.moved_B for one in ours] == counted


def test_a_fused_softmax_adds_no_mask():
    """Transformer Engine's, up to 16,383 keys."""
    plain, fused, longer = (operators(setting(*one)) for one in
                            (("torchtitan",), ("megatron",), ("megatron", 16384)))  # fmt: skip
    assert plain[0].moved_B - fused[0].moved_B == 2 + 2
    assert longer == plain
    assert plain[1] == fused[1]


@pytest.mark.parametrize("device", ["a100", "h100"])
def test_the_rate_is_that_of_published_curves(device: str):
    """arXiv 2307.08691, figures 4 and 7: PyTorch's TFLOP/s, of 4 FLOP per score and head size, 3.5 times."""
    claims = yaml.safe_load((ROOT / "conf/claims/kernels.yaml").read_text())["claims"]
    gpu = gpu_of(f"{device}_80gb")
    assert gpu is not None
    shares = []
    for claim in claims:
        named = re.fullmatch(rf"flash_2_{device}_(causal|full)_(64|128)_\dk", claim["id"])
        if named:
            published = float(re.search(r"PyTorch (\d+)", claim["quoted"])[1])  # type: ignore[index]
            counted, moved_B = (0.5, 26) if named[1] == "causal" else (1.0, 22)
            each_s = 4 * int(named[2]) * 3.5 * counted / (published * 1e12)
            shares.append(moved_B / each_s / gpu.memory_B_per_s)
    assert len(shares) == 9
    assert StepConstants.read().scores_share(gpu) == pytest.approx(median(shares), abs=0.001)
    assert max(shares) < 0.6
    assert min(shares) > 0.39


def test_seconds_are_those_of_the_bytes_of_all_scores():
    """Tensor-parallel ranks share heads, and masked scores count."""
    given = setting("megatron")
    layouts = Layouts.of([{"micro_batch_size": 2}, {"micro_batch_size": 2, "tp": 4}])
    forward, backward = scores_s(given, layouts)
    rate = 3.35e12 * 0.537
    assert forward[0] == pytest.approx(2 * 8 * 4096**2 * 8 / rate)
    assert backward[0] == pytest.approx(2 * 8 * 4096**2 * 14 / rate)
    assert forward[1] == pytest.approx(forward[0] / 4)


def test_recompute_of_attention_repeats_its_forward_pass():
    layouts = Layouts.of([{"recompute": one} for one in (0, 1, 2)])
    attention = step_s(setting("megatron"), layouts).layers.attention
    assert attention[1] / attention[0] == pytest.approx((22 + 8) / 22)
    assert attention[2] == pytest.approx(attention[1])


def test_context_parallelism_needs_a_fused_kernel():
    layout = Layouts.of([{"cp": 2}])
    training = Training(seq_len=4096, attention="unfused")
    assert refusal(SHAPE, layout, training) == "cp=2: explicit attention has no context parallelism"
    assert refusal(SHAPE, layout, Training(seq_len=4096)) is None


def test_a_question_names_explicit_attention_and_has_an_interval_of_its_own():
    model = {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 128256, "mlp": "swiglu",
    }  # fmt: skip
    layout = {"dp": 4, "tp": 2, "micro_batch_size": 1, "recompute": "none"}
    asked = {
        "id": "one", "kind": "step", "framework": "NeMo", "model": model, "device": "h100_80gb", "gpus": 8,
        "seq_len": 8192, "global_batch_size": 64, "precision": "bf16", "layout": layout,
    }  # fmt: skip
    fused, explicit = answers([asked, {**asked, "attention": "explicit"}])
    assert explicit["step_s"] > fused["step_s"]
    assert (fused["fits"], explicit["fits"]) == (True, False)
    scores_B = 32 * 2 * 32 / 2 * 8192**2
    assert explicit["memory_GB"] - fused["memory_GB"] == pytest.approx(scores_B / 1e9, rel=0.05)
    ends = explicit["step_s_low"] / explicit["step_s"], explicit["step_s_high"] / explicit["step_s"]
    assert ends == pytest.approx((0.75, 1.45))
    assert np.isfinite(explicit["step_s"])
