"""The models of other projects: the peaks of real steps, and their parts compared with torch's."""

import math
import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_memory_published import PEAKS, step_of

from suites.memory.live_bytes import measure_peak
from suites.published import litgpt, models
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.models.model import Attention, PositionTensors, rotary, rotary_tables
from suites.training.quantization import Nf4Linear
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


def test_a_norm_in_bf16_would_make_llama_2_with_lora_too_low(monkeypatch):
    """What the norm in fp32 is inferred from, for 7B with one sequence; the docs have all seven."""

    def in_bf16(x_ND, weight_D):
        return weight_D * (x_ND * torch.rsqrt((x_ND * x_ND).mean(-1, keepdim=True) + 1e-5))

    step, published_B = step_of("litgpt_llama2_7b_lora"), PEAKS["litgpt_llama2_7b_lora"].outcome.peak_GB * 1e9
    errors = []
    for norm in (litgpt.rms_norm_in_fp32, in_bf16):
        monkeypatch.setattr(litgpt, "rms_norm_in_fp32", norm)
        run = dry_run(step, Device("cuda", architecture="ampere"))
        errors.append(run.allocated_B / published_B - 1)
    assert errors == [pytest.approx(0, abs=0.006), pytest.approx(-0.032, abs=0.003)]


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


def together(x, key_heads):
    shape, positions = of_key_heads(key_heads), PositionTensors(*rotary_tables(6, 8), None)
    plain, ours = (one(shape, "sdpa", models.IN_FP32).double() for one in (Attention, models.RotatedTogether))
    ours.load_state_dict(plain.state_dict())
    return ours(x, positions), plain(x, positions)


def normed(x, norm):
    weight = normal(32)
    return norm(x, weight), F.rms_norm(x, (32,), weight, models.EPSILON)


def turned(x, function, pairs):
    """Each pair of a head turns, as a complex number, by its place times 10,000 ** (-2 i / 8)."""
    heads = x.view(2, 6, 4, 8).transpose(1, 2)
    angles = torch.arange(6.0).double().outer(10_000.0 ** (-torch.arange(4.0).double() / 4))
    parts = torch.view_as_complex(pairs(heads).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    expected = torch.view_as_real(parts)
    return pairs(function(heads, *rotary_tables(6, 8))), expected


def in_nf4(x):
    layer = Nf4Linear(torch.nn.Linear(32, 16, bias=False), double=True)
    return litgpt.InputKeeping(layer)(x), x @ layer.weight().half().double().T


PARTS = {
    "attention, groups": (lambda x: fused(x, 2), 1e-12),
    "attention": (lambda x: fused(x, 4), 1e-12),
    "prompts": (prompted, 1e-12),
    "adapters, groups": (lambda x: adapted(x, 2), 1e-12),
    "adapters": (lambda x: adapted(x, 4), 1e-12),
    "rotated together, groups": (lambda x: together(x, 2), 1e-6),
    "rotated together": (lambda x: together(x, 4), 1e-6),
    "norm in fp32": (lambda x: normed(x, litgpt.rms_norm_in_fp32), 1e-5),
    "norm of 2024": (lambda x: normed(x, litgpt.rms_norm_of_2024), 1e-5),
    "layer norm": (
        lambda x: (models.UnfusedLayerNorm(32).double()(x), F.layer_norm(x, (32,), eps=models.EPSILON)),
        1e-12,
    ),
    "GELU": (lambda x: (models.TanhGELU()(x), F.gelu(x, approximate="tanh")), 1e-12),
    "rotary of neighbours": (
        lambda x: turned(x, models.complex_rotary, lambda one: one.unflatten(-1, (-1, 2))),
        1e-5,
    ),
    "rotary of halves": (lambda x: turned(x, rotary, lambda one: torch.stack(one.chunk(2, -1), -1)), 1e-5),
    "nf4": (in_nf4, 1e-12),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_and_its_gradient_are_those_of_a_calculation_of_its_own_in_float64(name):
    torch.manual_seed(1)
    part, within = PARTS[name]
    x = normal(2, 6, 32).requires_grad_()
    ours, expected = part(x)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=within)
    found = [torch.autograd.grad(one.square().sum(), x, retain_graph=True)[0] for one in (ours, expected)]
    torch.testing.assert_close(*found, rtol=within, atol=10 * within)


def test_a_layer_in_nf4_keeps_its_input_even_after_the_backward_pass():
    x = normal(3, 32).requires_grad_()
    ours = litgpt.nf4(torch.nn.Linear(32, 16, bias=False))(x)
    ours.sum().backward()
    assert ours.grad_fn.kept.data_ptr() == x.data_ptr()


def test_prompts_are_stored_as_keys_and_values_and_get_no_gradient():
    named = "suites.published.models:litgpt_2024_adapter"
    trainer = Trainer(build_step(replace(TINY, model=named, num_hidden_layers=4), (), 1))
    trainer.accumulate(trainer.text_batches(), 1)
    own = {name: one for name, one in trainer.plain.named_parameters() if one.requires_grad}
    assert {name for name, one in own.items() if one.grad is not None} == {
        f"blocks.{layer}.attention.gate_H11" for layer in (2, 3)
    }
