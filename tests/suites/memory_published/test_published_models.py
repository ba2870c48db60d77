"""The models of other projects: the peaks of real steps, and their parts compared with float64."""

import math
import weakref
from dataclasses import replace

import pytest
import torch
from test_memory_published import step_of

from suites.memory.live_bytes import measure_peak
from suites.published import litgpt
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.models.model import PositionTensors
from suites.training.techniques import build_step
from suites.training.trainer import CPU, Trainer, build_model
from suites.training.workload import Workload as Trained

TINY = Trained(
    num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
    vocab_size=97, seq_len=24, micro_batch_size=2, max_position_embeddings=24,
)  # fmt: skip

SCALAR_B = 64
"""The allocation of a Python number that the CPU makes a tensor of, while it adds or multiplies by it."""

NF4 = ("", "_nf4", "_nf4_double")
ADAPTERS = [f"litgpt_2024_adapter{version}{base}" for version in ("", "_v2") for base in NF4]

STABLELM = {"norm": "layer", "mlp": "gelu", "bias": True}

MODELS = [
    "torchtitan_llama", "torchtune_llama", "litgpt_llama", "litgpt_lora", "litgpt_2023_lora",
    "litgpt_2023_nf4", "litgpt_2023_nf4_double", "litgpt_2023_phi_lora", "litgpt_2023_phi_nf4",
    "litgpt_2023_phi_nf4_double", "litgpt_phi", "gpt2_from_scratch", *ADAPTERS,
]  # fmt: skip

FP32, BF16 = (), ({"mixed_precision": {"gradients": "bf16"}},)


@pytest.mark.parametrize(
    ("model", "given"), [*((one, BF16) for one in MODELS), *((one, FP32) for one in MODELS[: -len(ADAPTERS)])]
)
def test_the_dry_run_of_each_model_is_the_real_steps_peak(model, given):
    """By the allocator's events of a real step on this CPU."""
    sizes = {"gpt2_from_scratch": {"num_key_value_heads": 4, "dropout": 0.1}, "litgpt_phi": STABLELM}
    own = {"num_hidden_layers": 4} if model in ADAPTERS else sizes.get(model, {})
    workload = replace(TINY, model=f"suites.published.models:{model}", **own)
    assert_the_peak_of_a_real_step(build_step(workload, given, 1))


def assert_the_peak_of_a_real_step(step):
    real = max(one.live_B for one in measure_peak(step, CPU, steady_steps=1).peaks)
    assert 0 <= real - dry_run(step, Device("host", measured=True)).peak_B <= SCALAR_B


STABLELM_MODELS = ["litgpt_2024_adapter", "litgpt_2024_adapter_v2_nf4_double", "litgpt_2023_lora",
                   "litgpt_2023_nf4"]  # fmt: skip


@pytest.mark.parametrize("model", STABLELM_MODELS)
def test_the_dry_run_of_stablelm_is_the_real_steps_peak(model):
    workload = replace(TINY, model=f"suites.published.models:{model}", num_hidden_layers=4, **STABLELM)
    assert_the_peak_of_a_real_step(build_step(workload, ["bf16_states"], 1))


PRINTED = [("llama2_7b_adapter", 1_229_760), ("llama2_7b_adapter_v2", 4_279_744),
           ("stablelm_3b_adapter", 573_888), ("stablelm_3b_adapter_v2", 2_125_248)]  # fmt: skip


@pytest.mark.parametrize(("row", "published"), PRINTED)
def test_as_many_parameters_are_trained_as_litgpt_printed(row, published):
    given = step_of(f"litgpt_{row}").given
    assert trained_elements(build_step(given, [], 1)) == published
    if row.startswith("llama"):
        adapter = {"llama_adapter": {"version": 2 if row.endswith("v2") else 1}}
        assert trained_elements(build_step(replace(given, model=None), [adapter], 1)) == published


def trained_elements(step):
    with torch.device("meta"):
        model = build_model(step)
        for wrap in step.wraps:
            model = wrap(model, None)
    return sum(one.numel() for one in model.parameters() if one.requires_grad)


def test_logits_of_an_earlier_forward_pass_are_gone_when_one_begins():
    workload = replace(TINY, model="suites.published.models:litgpt_2023_lora")
    trainer = Trainer(build_step(workload, ["bf16_states"], 1))
    held = trainer.plain.head_loss
    trainer.train_step()
    kept = [weakref.ref(one) for one in held._kept]
    assert [one().dtype for one in kept] == [torch.float32]
    trainer.plain.blocks[0].register_forward_pre_hook(lambda *_: seen.extend(one() for one in kept))
    seen = []
    trainer.train_step()
    assert seen == [None]


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def of_key_heads(key_heads):
    return replace(TINY, num_key_value_heads=key_heads).shape


def explicit(q, k, v, mask=0.0):
    scores = torch.einsum("...tk,...sk->...ts", q, k) / q.shape[-1] ** 0.5
    return (scores + mask).softmax(-1) @ v


LATER = torch.full((6, 6), -math.inf, dtype=torch.float64).triu(1)


def fused(x, key_heads):
    """Of each group of heads its queries come first, then a key and a value; without positions."""
    attention = litgpt.FusedAttention(of_key_heads(key_heads)).double()
    *queries, k, v = attention.qkv(x).view(2, 6, key_heads, -1, 8).permute(3, 0, 2, 1, 4)
    mixed = torch.stack([explicit(q, k, v, LATER) for q in queries], 2).flatten(1, 2)
    expected = attention.output(mixed.transpose(1, 2).flatten(2))
    return attention(x, PositionTensors(None, None, None)), expected


def prompted(x):
    attention = litgpt.PromptedAttention(of_key_heads(4)).double()
    torch.nn.init.normal_(attention.gate_H11)
    q, k, v = x.view(2, 6, 4, 8).transpose(1, 2), normal(2, 4, 6, 8), normal(2, 4, 6, 8)
    prompts = explicit(q, *attention.keys_values)
    return attention.attend(q, k, v), explicit(q, k, v, LATER) + attention.gate_H11 * prompts


def adapted(x, key_heads):
    """Queries and values change by a product of two matrices each, keys do not."""
    layer = torch.nn.Linear(32, 32 + 2 * 8 * key_heads)
    adapter = litgpt.QueryValueAdapter(layer, of_key_heads(key_heads), 3).double().eval()
    torch.nn.init.normal_(adapter.up)
    lows, up = adapter.down(x).split(3, dim=-1), adapter.up[..., 0].split([32, 8 * key_heads])
    query, value = (low @ one.T for low, one in zip(lows, up, strict=True))
    change = torch.cat([query, torch.zeros_like(value), value], -1)
    return adapter(x), adapter.base(x) + litgpt.ALPHA / 3 * change


PARTS = {
    "attention, groups": lambda x: fused(x, 2),
    "attention": lambda x: fused(x, 4),
    "prompts": prompted,
    "adapters, groups": lambda x: adapted(x, 2),
    "adapters": lambda x: adapted(x, 4),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_and_its_gradient_are_those_of_a_calculation_of_its_own_in_float64(name):
    torch.manual_seed(1)
    x = normal(2, 6, 32).requires_grad_()
    ours, expected = PARTS[name](x)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-12)
    found = [torch.autograd.grad(one.square().sum(), x, retain_graph=True)[0] for one in (ours, expected)]
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-11)
