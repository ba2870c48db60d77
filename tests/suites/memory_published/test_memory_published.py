"""Published peaks: what is compared with what, the models that others ran, and the command for each."""

import json
import math
import re
import shlex
import subprocess
import sys
import weakref
from dataclasses import replace
from statistics import median

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from harness.config.code_fingerprint import ROOT
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.records import Origin, Reading, Unavailable, measurement
from harness.sweep.store import read_records
from harness.units import LEGEND, legend
from suites import memory, memory_published
from suites.memory.measure import measure_peak
from suites.memory_published import litgpt, litgpt_adapter, models
from suites.memory_published.command import PUBLISHED
from suites.memory_published.subject import Workload, not_built
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.dry_run.simulated_cuda import cuda_operations
from suites.training.models.model import Attention, PositionTensors, rotary_tables
from suites.training.models.quantized_weights import Nf4Linear
from suites.training.techniques import build_step
from suites.training.trainer import CPU, Trainer, build_model
from suites.training.workload import Workload as Trained

(RUN,) = load(["suite=memory_published"])
TORCH = [name for name, row in RUN.workloads.items() if row["program"] == "torch"]
MEGATRON = [name for name in RUN.workloads if name not in TORCH]
TINY = Trained(
    num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
    vocab_size=97, seq_len=24, micro_batch_size=2, max_position_embeddings=24,
)  # fmt: skip


def subject_of(name, **changes):
    return memory_published.build({**RUN.workloads[name], **changes}, 1)


def of_few_layers(name):
    """The row with the first layers of each kind: describing one builds its model, which is not looked at."""
    return subject_of(name, num_hidden_layers=min(4, RUN.workloads[name]["num_hidden_layers"]))


def test_there_are_rows_of_several_authors_and_kinds():
    rows = RUN.workloads.values()
    assert len({row["published_by"] for row in rows}) >= 4
    assert {row["kind"] for row in rows} == {"allocated", "active", "reserved"}
    assert all("commit" in row["source"] or " at " in row["source"] for row in rows)


@pytest.mark.parametrize("name", TORCH)
def test_a_row_is_described_or_names_the_technique_that_is_not_built(name):
    subject = of_few_layers(name)
    if subject.step is None:
        assert subject.missing == not_built(subject.workload.techniques) != ""
        with pytest.raises(Unavailable, match="not built"):
            list(memory_published.sample(subject))
    else:
        assert subject.step.ranks == subject.workload.dp_size


@pytest.mark.parametrize("name", MEGATRON)
def test_the_command_of_megatrons_rows_gives_the_same_layout_without_a_published_peak(name):
    row = subject_of(name).workload
    words = shlex.split(memory_published.conditions(subject_of(name))["command"])
    (run,) = load(words[3:])
    (fields,) = run.workloads.values()
    asked = memory_published.build(fields, 1).workload
    assert asked.published is None
    told = {one: getattr(row, one) for one in PUBLISHED}
    assert replace(asked, **told) == row


@pytest.mark.parametrize("name", TORCH)
def test_the_command_of_a_row_asks_for_the_same_step(name):
    subject = of_few_layers(name)
    words = shlex.split(memory_published.conditions(subject)["command"])
    assert words[:3] == ["python", "-m", "harness"]
    if subject.step is None:
        with pytest.raises(ConfigError, match="no such name"):
            load(words[3:])
        return
    (run,) = load(words[3:])
    (fields,) = run.workloads.values()
    asked = memory.apply_techniques(memory.build(fields, 1), run.variants[-1].techniques)
    step = asked.step
    assert asked.architecture == subject.workload.architecture
    assert asked.allocator.expandable_segments == subject.workload.expandable_segments
    assert asked.fsdp2_copies_on_own_stream == subject.workload.fsdp2_copies_on_own_stream
    assert step.given == subject.step.given
    assert dict(step.techniques) == dict(subject.step.techniques)
    assert step.features == subject.step.features
    assert fields["simulated_device"] == "cuda"


SMALL = {
    "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 67, "micro_batch_size": 2, "seq_len": 16,
    "max_position_embeddings": 16,
}  # fmt: skip


def test_the_error_is_against_the_published_bytes():
    subject = subject_of("gpt2_fp32", **SMALL, published=0.004, unit="GB", kind="allocated")
    taken = {
        (one.metric, one.method): one for one in memory_published.sample(subject) if isinstance(one, Reading)
    }
    published, ours = taken["peak_memory", "published"], taken["peak_memory", "fake_step"]
    assert (published.value, published.origin) == (4e6, Origin.PUBLISHED)
    run = dry_run(subject.step, Device("cuda", architecture="ampere"))
    assert (ours.value, ours.origin) == (run.allocated_B, Origin.SIMULATED)
    assert run.peak_B <= run.allocated_B <= run.reserved_B
    assert taken["relative_error", "fake_step"].value == pytest.approx(ours.value / 4e6 - 1)


@pytest.mark.parametrize("expandable", [False, True])
def test_reserved_memory_holds_what_is_allocated(expandable):
    """Tensors left by set-up and those of the steps fill the segments, but for those that are open."""
    subject = subject_of("gpt2_fp32", **SMALL, kind="reserved", expandable_segments=expandable)
    readings = [one for one in memory_published.sample(subject) if isinstance(one, Reading)]
    (reserved,) = [one.value for one in readings if (one.metric, one.method) == ("peak_memory", "fake_step")]
    allocated = dry_run(subject.step, Device("cuda", architecture="ampere")).peak_B
    assert allocated <= reserved <= allocated + 2 * 2**21 + 20 * 2**20


def test_a_percentage_of_the_device_is_the_bytes_that_were_published():
    row = subject_of("titan_llama2_7b_active").workload
    assert isinstance(row, Workload)
    assert row.published_B == pytest.approx(0.2392 * 95.0396 * 2**30, rel=1e-4)
    assert subject_of("titan_llama2_7b_reserved").workload.published_B == pytest.approx(
        0.3264 * 95.0396 * 2**30, rel=1e-4
    )


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
    workload = replace(TINY, model=f"suites.memory_published.models:{model}")
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
    model = f"suites.memory_published.models:{model}"
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
    named = "suites.memory_published.models:litgpt_2024_adapter"
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
    attention = litgpt_adapter.PromptedAttention(shape).double()
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
    assert torch.allclose(litgpt_adapter.rms_norm_of_2024(x, weight), wide, atol=1e-6)
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
    workload = replace(TINY, model="suites.memory_published.models:litgpt_2023_lora")
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


def test_the_legend_names_published_values_where_there_are_some():
    assert legend(["measured", "calculated"]) == LEGEND
    assert legend(["published"]).startswith(LEGEND)
    assert "ᵖ published by others" in legend(["simulated", "published"])


def test_the_page_shows_what_was_published_by_whom_and_why_there_is_no_prediction(tmp_path):
    words = ["suite=memory_published", "workloads=[gpt2_fp32,litgpt_phi2_lora]", f"out={tmp_path}"]
    done = subprocess.run([sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    records = {one["cell"]["workload"]: one for one in map(json.loads, lines)}
    assert len(records) == 2
    report = (tmp_path / "report.md").read_text()
    for shown in ("rasbt/LLMs-from-scratch", "26.3 ᵖ", "ᵖ published by others", "A10G", "suite=memory "):
        assert shown in report.replace("\N{NO-BREAK SPACE}", " ")
    for record in records.values():
        assert record["measurements"][0][:4] == ["peak_memory", "B", "published", "published"]
        if record["status"] == "unavailable":
            assert record["reason"] in report


GROUPS = {
    "Qwen3-32B": "titan_",
    "Llama-3.2-3B": "torchtune_",
    "GPT-2 124M": "gpt2_",
    "TinyLlama in full": "litgpt_(tinyllama|llama3|phi2)_",
    "phi-1.5": "litgpt_(phi15|stablelm_3b_(?!adapter))",
    "their norm is inferred": "litgpt_llama2_(?!7b_adapter)",
    "LLaMA-Adapter 1 and 2": "litgpt_(llama2_7b|stablelm_3b)_adapter",
    "GPT 7B and 64M": "megatron_",
}
"""Words of a row of the page's table, and the names of its peaks."""


def test_the_docs_have_the_errors_of_the_committed_run():
    lines = (ROOT / "docs/suites/memory_published.md").read_text().splitlines()
    errors = {}
    for record in read_records(ROOT / "results" / "reference" / "memory_published"):
        method = "megatron" if record.cell.workload in MEGATRON else "fake_step"
        (error,) = measurement(record, "relative_error", method).samples
        errors[record.cell.workload] = 100 * error
    assert errors.keys() == RUN.workloads.keys()
    for words, names in GROUPS.items():
        (line,) = [one for one in lines if one.startswith("|") and words in one]
        of_group = [error for name, error in errors.items() if re.match(names, name)]
        worst = max(of_group, key=abs)
        shown = [len(of_group), f"{median(map(abs, of_group)):.2f} %", f"{worst:+.2f} %".replace("-", "−")]
        assert line.endswith("| " + " | ".join(map(str, shown)) + " |")
    assert len(errors) == sum(
        len([name for name in errors if re.match(names, name)]) for names in GROUPS.values()
    )
    dry = [abs(error) for name, error in errors.items() if name not in MEGATRON]
    within = [error for error in errors.values() if abs(error) < 2]
    by_account = [abs(errors[name]) for name in MEGATRON]
    assert max(map(abs, errors.values())) == max(by_account)
    text = " ".join(lines)
    assert f"{len(within)} of {len(errors)} peaks are predicted within 2 %: {len(dry)} by dry runs" in text
    assert f"half of them within {median(dry):.2f} %" in text
    few = sum(error < 2 for error in by_account)
    assert f"{few} of {len(MEGATRON)} of Megatron-LM" in text
    assert max(by_account) < 4
    assert "the others are within 4 %" in text
    readme = (ROOT / "README.md").read_text()
    assert f"{len(within)} of {len(errors)} within 2 %" in readme
