"""The models of other projects: the peaks of real steps, and their parts compared with torch's."""

import math
import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_memory_published import subject_of
from torch._subclasses import FakeTensorMode

from suites.memory.live_bytes import measure_peak
from suites.published import litgpt, models
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.dry_run.simulated_cuda import cuda_operations
from suites.training.models.model import Attention, PositionTensors, rotary_tables
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

ADAPTERS = [
    "litgpt_2024_adapter", "litgpt_2024_adapter_nf4", "litgpt_2024_adapter_nf4_double",
    "litgpt_2024_adapter_v2", "litgpt_2024_adapter_v2_nf4", "litgpt_2024_adapter_v2_nf4_double",
]  # fmt: skip

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
    workload = replace(TINY, model=f"suites.published.models:{model}")
    if model == "gpt2_from_scratch":
        workload = replace(workload, num_key_value_heads=4, dropout=0.1)
    if model == "litgpt_phi":
        workload = replace(workload, **STABLELM)
    if model in ADAPTERS:  # the third layer has the first prompts
        workload = replace(workload, num_hidden_layers=4)
    assert_the_peak_of_a_real_step(build_step(workload, given, 1))


def test_a_norm_in_bf16_would_make_llama_2_with_lora_too_low(monkeypatch):
    """What the norm in fp32 is inferred from, for 7B with one sequence; the docs have all seven."""

    def in_bf16(x_ND, weight_D):
        return weight_D * (x_ND * torch.rsqrt((x_ND * x_ND).mean(-1, keepdim=True) + 1e-5))

    row = subject_of("litgpt_llama2_7b_lora")
    errors = []
    for norm in (litgpt.rms_norm_in_fp32, in_bf16):
        monkeypatch.setattr(litgpt, "rms_norm_in_fp32", norm)
        run = dry_run(row.step, Device("cuda", architecture="ampere"))
        errors.append(run.allocated_B / row.workload.published_B - 1)
    assert errors == [pytest.approx(0, abs=0.006), pytest.approx(-0.032, abs=0.003)]


def assert_the_peak_of_a_real_step(step):
    real = max(one.live_B for one in measure_peak(step, CPU, steady_steps=1).peaks)
    assert 0 <= real - dry_run(step, Device("host", measured=True)).peak_B <= SCALAR_B


@pytest.mark.parametrize(
    "model",
    ["litgpt_2024_adapter", "litgpt_2024_adapter_v2_nf4_double", "litgpt_2023_lora", "litgpt_2023_nf4"],
)
def test_the_dry_run_of_stablelm_is_the_real_steps_peak(model):
    model = f"suites.published.models:{model}"
    assert_the_peak_of_a_real_step(
        build_step(replace(TINY, model=model, num_hidden_layers=4, **STABLELM), ["bf16_states"], 1)
    )


@pytest.mark.parametrize(
    ("row", "published"),
    [
        ("litgpt_llama2_7b_adapter", 1_229_760),
        ("litgpt_llama2_7b_adapter_v2", 4_279_744),
        ("litgpt_stablelm_3b_adapter", 573_888),
        ("litgpt_stablelm_3b_adapter_v2", 2_125_248),
    ],
)
def test_as_many_parameters_are_trained_as_litgpt_printed(row, published):
    given = subject_of(row).step.given
    assert trained_elements(build_step(given, [], 1)) == published
    if row.startswith("litgpt_llama"):
        adapter = {"llama_adapter": {"version": 2 if row.endswith("v2") else 1}}
        assert trained_elements(build_step(replace(given, model=None), [adapter], 1)) == published


def trained_elements(step):
    with torch.device("meta"):
        model = build_model(step)
        for wrap in step.wraps:
            model = wrap(model, None)
    return sum(one.numel() for one in model.parameters() if one.requires_grad)


def test_prompts_are_stored_as_keys_and_values_and_get_no_gradient():
    named = "suites.published.models:litgpt_2024_adapter"
    trainer = Trainer(build_step(replace(TINY, model=named, num_hidden_layers=4), (), 1))
    trainer.accumulate(trainer.text_batches(), 1)
    trained = {name: one.grad is None for name, one in trainer.plain.named_parameters() if one.requires_grad}
    assert trained == {
        f"blocks.{layer}.attention.{part}": part == "prompts_LD"
        for layer in (2, 3)
        for part in ("prompts_LD", "gate_H11")
    }


def test_attention_to_stored_prompts_is_added_with_a_gate_per_head():
    shape = replace(TINY, num_key_value_heads=4).shape
    attention = litgpt.PromptedAttention(shape).double()
    torch.nn.init.normal_(attention.gate_H11)
    q, k, v = torch.randn(3, 2, 4, 6, 8, dtype=torch.float64)
    keys, values = attention.keys_values
    prompted = torch.einsum("bhtk,xhlk->bhtl", q, keys).div(8**0.5).softmax(-1) @ values
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True) + attention.gate_H11 * prompted
    assert torch.allclose(attention.attend(q, k, v), expected, atol=1e-12)


def test_the_norm_and_the_layer_norm_are_torchs():
    x = torch.randn(6, 32, dtype=torch.float64)
    weight = torch.randn(32, dtype=torch.float64)
    wide = torch.nn.functional.rms_norm(x, (32,), weight, models.EPSILON)
    assert torch.allclose(litgpt.rms_norm_of_2024(x, weight), wide, atol=1e-6)
    assert torch.allclose(litgpt.rms_norm_in_fp32(x, weight).double(), wide, atol=1e-6)
    norm = models.UnfusedLayerNorm(32).double()
    assert torch.allclose(norm(x), F.layer_norm(x, (32,), eps=models.EPSILON), atol=1e-12)
    assert torch.allclose(models.TanhGELU()(x), F.gelu(x, approximate="tanh"), atol=1e-12)


@pytest.mark.parametrize("key_heads", [4, 2])
def test_adapters_change_queries_and_values_by_a_product_of_two_matrices(key_heads):
    shape = replace(TINY, num_key_value_heads=key_heads).shape
    adapter = litgpt.QueryValueAdapter(torch.nn.Linear(32, 32 + 2 * 8 * key_heads), shape, 3).double().eval()
    torch.nn.init.normal_(adapter.up)
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    lows, query = adapter.down(x).split(3, dim=-1), adapter.up[:32, :, 0]
    value = adapter.up[32:, :, 0]
    change = torch.cat([lows[0] @ query.T, torch.zeros(2, 5, 8 * key_heads), lows[1] @ value.T], -1)
    assert torch.allclose(adapter(x), adapter.base(x) + litgpt.ALPHA / 3 * change, atol=1e-12)


def test_a_layer_in_nf4_keeps_its_input_and_gives_what_one_without_gives():
    layer = Nf4Linear(torch.nn.Linear(64, 16, bias=False), double=True)
    x = torch.randn(3, 64).half().float().requires_grad_()
    ours = litgpt.InputKeeping(layer)(x)
    assert ours.grad_fn.kept.data_ptr() == x.data_ptr()
    plain = x @ layer.weight().half().float().T
    assert torch.equal(ours, plain)
    ours.sum().backward()
    assert torch.allclose(x.grad, layer.weight().half().float().sum(0).expand(3, 64))
    assert ours.grad_fn.kept is not None


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


def test_complex_rotary_turns_each_pair_by_its_angle():
    x = torch.randn(2, 3, 5, 8)
    angles = torch.rand(5, 4)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    turned = models.complex_rotary(x, cos, sin)
    for place in range(5):
        for pair in range(4):
            angle = float(angles[place, pair])
            a, b = x[..., place, 2 * pair], x[..., place, 2 * pair + 1]
            assert torch.allclose(
                turned[..., place, 2 * pair], a * math.cos(angle) - b * math.sin(angle), atol=1e-6
            )
            assert torch.allclose(
                turned[..., place, 2 * pair + 1], a * math.sin(angle) + b * math.cos(angle), atol=1e-6
            )


@pytest.mark.parametrize("heads", [2, 4])
def test_turning_queries_and_keys_together_is_turning_each(heads):
    shape = replace(TINY, num_key_value_heads=heads).shape
    plain = Attention(shape, "sdpa", models.IN_FP32)
    together = models.RotatedTogether(shape, "sdpa", models.IN_FP32)
    together.load_state_dict(plain.state_dict())
    x, positions = torch.randn(2, 6, 32), PositionTensors(*rotary_tables(6, 8), None)
    assert torch.allclose(together(x, positions), plain(x, positions), atol=1e-6)


def test_attention_of_litgpt_gives_its_output_layer_a_copy():
    """Of a flash kernel whose result has the layout of its queries."""
    attention = litgpt.FusedAttention(TINY.shape)
    layouts = []
    with cuda_operations(), FakeTensorMode(allow_non_fake_inputs=True):
        flash = F.scaled_dot_product_attention

        def noted(query, *args, **kwargs):
            mixed = flash(query, *args, **kwargs)
            layouts.append((query.is_contiguous(), mixed.is_contiguous()))
            return mixed

        F.scaled_dot_product_attention = noted
        x = torch.randn(1, 6, 32, dtype=torch.bfloat16)
        attention.bfloat16()(x, PositionTensors(*rotary_tables(6, 8), None))
    assert layouts == [(True, True)]


@pytest.mark.parametrize("heads", [2, 4])
def test_attention_from_one_layer_is_attention_over_its_parts(heads):
    """Compared with explicit attention in float64, without positions."""
    shape = replace(TINY, num_key_value_heads=heads).shape
    attention = litgpt.FusedAttention(shape).double()
    x = torch.randn(2, 6, 32, dtype=torch.float64)
    parts = attention.qkv(x).view(2, 6, heads, 4 // heads + 2, 8)
    mixed = torch.empty(2, 6, 4, 8, dtype=torch.float64)
    for query in range(4):
        group, inside = divmod(query, 4 // heads)
        q, k, v = parts[:, :, group, inside], parts[:, :, group, -2], parts[:, :, group, -1]
        scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf)
        mixed[:, :, query] = scores.softmax(-1) @ v
    expected = attention.output(mixed.flatten(2))
    assert torch.allclose(attention(x, PositionTensors(None, None, None)), expected, atol=1e-12)
