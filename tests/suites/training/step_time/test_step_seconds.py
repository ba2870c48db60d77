"""Seconds of whole steps: FLOP counted a second way, parts that add up, explicit attention by its bytes."""

import re
from dataclasses import replace
from statistics import median

import pytest
import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode

from harness.config.code_fingerprint import ROOT
from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import Layouts, Training
from suites.training.step_time.constants import GpuCluster, StepConstants
from suites.training.step_time.gpu import gpu_of
from suites.training.step_time.seconds import step_s
from suites.training.step_time.setting import RunFacts, StepSetting, operators, scores_s

SEVENTY_B = TransformerShape(
    num_hidden_layers=80, hidden_size=8192, num_attention_heads=64, num_key_value_heads=8, head_dim=128,
    intermediate_size=28672, vocab_size=128256,
)  # fmt: skip
OF_MATMULS = ("quantisation", "inner_offset", "fixed_s")
OF_PROGRAM = ("pointwise_factor", "accumulate_B", "update_B", "logit_B", "layer_launch_s")
NOTHING_ELSE = {
    **{f"matmul.hopper.{name}": 0.0 for name in OF_MATMULS},
    **{f"megatron.{name}": 0.0 for name in OF_PROGRAM},
    "step_s": 0.0, "attention.ramp": 0.0, "attention.cudnn.hopper.forward": 1.0,
    "attention.cudnn.hopper.backward": 1.0,
}  # fmt: skip
"""Constants with which a step is nothing but its FLOP at the rate of matmuls."""


def setting(shape=SEVENTY_B, program="megatron", seq_len=8192, attention="flash", **changed):
    cluster = GpuCluster(gpu_of("h100_80gb"), 8, 50e9)
    training = Training(seq_len=seq_len, program=program, attention=attention)
    return StepSetting(shape, training, cluster, StepConstants.read(**changed))


def test_a_step_of_nothing_but_flop_takes_the_flop_of_the_closed_count():
    """And a third less of matmuls where weights are frozen."""
    given = setting(**NOTHING_ELSE)
    rate = given.gpu.peak_FLOP_per_s("bf16") * given.matmul_rates("bf16").peak_share
    tokens, hidden = 8192.0 * 4, 8192
    # Narayanan et al., arXiv 2104.04473, section 3: 6 per parameter and token, and 12 s h per layer, of which
    # causal attention needs half
    matrices = 80 * (hidden * (hidden + 2 * 1024) + hidden * hidden + 3 * hidden * 28672) + hidden * 128256
    attention = 80 * 6 * 8192 * hidden / 2 * 2 * 3.5 / 3  # flash attention's backward: 2.5 times its forward
    expected = tokens * (6 * matrices / rate + attention / given.gpu.peak_FLOP_per_s("bf16"))
    layouts = Layouts.of([{"micro_batch_size": 4}])
    whole = step_s(given, layouts)
    assert whole.total[0] == pytest.approx(expected, rel=0.01)
    frozen = step_s(replace(given, run=RunFacts(adapters_alone=True)), layouts)
    assert frozen.layers.matmul[0] == pytest.approx(whole.layers.matmul[0] * 2 / 3, rel=0.05)


SHAPE = TransformerShape(
    num_hidden_layers=4, hidden_size=1024, num_attention_heads=8, num_key_value_heads=8, head_dim=128,
    intermediate_size=4096, vocab_size=1024,
)  # fmt: skip
VIEWS = ("view", "transpose", "expand", "detach", "t.default", "_unsafe_view", "alias")


def unfused(program, seq_len=4096):
    return setting(SHAPE, program, seq_len=seq_len, attention="unfused")


class ScoreTraffic(TorchDispatchMode):
    """Adds up the bytes of score matrices, tensors of so many elements, that operators read and write."""

    def __init__(self, scores):
        super().__init__()
        self.scores, self.moved_B = scores, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not any(name in str(function) for name in VIEWS):
            tensors = [one for one in (*args, result) if isinstance(one, torch.Tensor)]
            self.moved_B += sum(one.nbytes for one in tensors if one.numel() == self.scores)
        return result


def test_operators_move_as_many_bytes_per_score_as_torchs():
    """As torch's explicit attention with an added causal mask runs them, forward and backward."""
    heads, length, size = 3, 64, 16
    scores = heads * length * length
    q, k, v = (torch.randn(heads, length, size, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    mask = torch.full((length, length), -1e4, dtype=torch.bfloat16).triu(1)
    with ScoreTraffic(scores) as forward:
        out = torch.softmax(q @ k.transpose(1, 2) + mask, -1) @ v
    with ScoreTraffic(scores) as backward:
        out.sum().backward()
    ours = operators(unfused("torchtitan"))
    counted = [forward.moved_B / scores, backward.moved_B / scores]
    assert [2 * one.products + one.moved_B for one in ours] == counted


def test_seconds_are_those_of_the_bytes_of_all_scores():
    """Tensor-parallel ranks share heads, masked scores count, and recompute repeats the forward pass."""
    given = unfused("megatron")
    layouts = Layouts.of([{"micro_batch_size": 2}, {"micro_batch_size": 2, "tp": 4}])
    forward, backward = scores_s(given, layouts)
    rate = 3.35e12 * 0.537
    assert forward[0] == pytest.approx(2 * 8 * 4096**2 * 8 / rate)
    assert backward[0] == pytest.approx(2 * 8 * 4096**2 * 14 / rate)
    assert forward[1] == pytest.approx(forward[0] / 4)
    attention = step_s(given, Layouts.of([{"recompute": one} for one in (0, 1, 2)])).layers.attention
    assert attention[1:] / attention[0] == pytest.approx((22 + 8) / 22)


@pytest.mark.parametrize("device", ["a100", "h100"])
def test_the_rate_of_scores_is_that_of_published_curves(device):
    """arXiv 2307.08691, figures 4 and 7: PyTorch's TFLOP/s, of 4 FLOP per score and head size, 3.5 times."""
    gpu, shares = gpu_of(f"{device}_80gb"), []
    for claim in yaml.safe_load((ROOT / "conf/claims/kernels.yaml").read_text())["claims"]:
        named = re.fullmatch(rf"flash_2_{device}_(causal|full)_(64|128)_\dk", claim["id"])
        if named:
            published = float(re.search(r"PyTorch (\d+)", claim["quoted"])[1])
            counted, moved_B = (0.5, 26) if named[1] == "causal" else (1.0, 22)
            each_s = 4 * int(named[2]) * 3.5 * counted / (published * 1e12)
            shares.append(moved_B / each_s / gpu.memory_B_per_s)
    assert len(shares) == 9
    assert StepConstants.read().scores_share(gpu) == pytest.approx(median(shares), abs=0.001)
