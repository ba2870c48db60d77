"""The models of other projects: the peaks of real steps, and their parts compared with torch's."""

import weakref
from dataclasses import replace

import pytest
import torch
from test_memory_published import subject_of

from suites.memory.live_bytes import measure_peak
from suites.published import litgpt
from suites.training.dry_run.dry_run import Device, dry_run
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
    given = subject_of(f"litgpt_{row}").step.given
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
