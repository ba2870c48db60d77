"""Published peaks: rows that are asked as a user asks, what is compared with what, and the docs' errors."""

import re
import shlex
from statistics import median

import pytest
from msgspec.structs import replace

from harness.ask.batch import of_words
from harness.ask.words import FIT, question_from, words_of
from harness.config.code_fingerprint import ROOT
from harness.config.run import load
from harness.records import Origin, Reading, measurement
from harness.sweep.store import read_records
from suites.published import memory_published
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.dry_run_engine import StepRuns
from suites.training.step_time.published.rows import Outcome, published_runs, question
from suites.training.techniques import build_step
from suites.training.workload import Workload

FILE = ROOT / "suites/published/peaks.jsonl"
PEAKS = {run.id: run for run in published_runs(FILE)}
MEGATRON = [name for name, run in PEAKS.items() if run.framework == "Megatron-LM"]
HOST = {name for name, run in PEAKS.items() if run.outcome.host_GB}


def step_of(name):
    """The step that a row's words ask for."""
    return StepRuns(of_words(question(PEAKS[name]))).step


def readings_of(run):
    found = (one for one in memory_published.sample(run) if isinstance(one, Reading))
    return {(one.metric, one.method): one for one in found}


def test_each_row_is_a_workload_with_a_page_words_and_one_value():
    (run,) = load(["suite=memory_published"])
    assert list(run.workloads) == list(PEAKS)
    assert len(PEAKS) == 99
    for name, peak in PEAKS.items():
        assert peak.page.startswith("https://github.com/"), name
        assert bool(peak.words) == (name not in HOST), name
        assert (peak.outcome.peak_GB is None) == (name in HOST), name
        assert memory_published.build(run.workloads[name], 1) == peak


def test_the_command_of_a_row_asks_the_rows_question():
    for name in sorted(PEAKS.keys() - HOST)[::4]:
        words = shlex.split(memory_published.command_of(PEAKS[name]))
        assert words[:3] == ["python", "-m", "harness.fit"]
        asked = question_from(words_of(words[3:], FIT))
        assert asked == of_words(question(PEAKS[name])), name
        assert asked.all_devices() == PEAKS[name].gpus


SMALL = {
    "model": {
        "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
        "intermediate_size": 64, "vocab_size": 67, "max_position_embeddings": 16, "norm": "layer",
        "mlp": "gelu", "position": "learned", "bias": True,
    },
    "model_code": "suites.published.models:gpt2_from_scratch", "device": "a100_80gb", "devices": 1,
    "seq_len": 16, "micro_batch_size": 2, "techniques": [{"optimizer": {"impl": "foreach"}}],
}  # fmt: skip


def test_the_error_is_that_of_the_dry_run_against_the_published_bytes():
    fields = {name: SMALL[name] for name in ("seq_len", "micro_batch_size")} | SMALL["model"]
    step = build_step(Workload(**fields, model=SMALL["model_code"]), SMALL["techniques"])
    run = dry_run(step, Device("cuda", architecture="ampere"))
    assert run.peak_B <= run.allocated_B <= run.reserved_B
    for kind, predicted_B in (("allocated", run.allocated_B), ("reserved", run.reserved_B)):
        peak = replace(PEAKS["gpt2_fp32"], words=SMALL, outcome=Outcome(peak_GB=0.004, peak_kind=kind))
        found = readings_of(peak)
        published, ours = found["peak_memory", "published"], found["peak_memory", "fake_step"]
        assert (published.value, published.origin) == (4e6, Origin.PUBLISHED)
        assert (ours.value, ours.origin) == (pytest.approx(predicted_B), Origin.SIMULATED)
        assert found["relative_error", "fake_step"].value == pytest.approx(predicted_B / 4e6 - 1)
    assert found["bytes_per_parameter", "published"].value == pytest.approx(
        4e6 / found["parameters", ""].value
    )


def test_megatrons_peak_is_the_last_ranks():
    """Of stages of unlike layers the first rank takes more than the last."""
    run = PEAKS["megatron_mixtral_8x22b_tp2pp8ep8vpp1"]
    last = readings_of(run)["peak_memory", "megatron"].value
    largest = readings_of(replace(run, rank="largest"))["peak_memory", "megatron"].value
    assert last < largest
    assert last / 1e9 == pytest.approx(run.outcome.peak_GB, rel=0.005)


def test_host_memory_is_the_buffers_of_a_nodes_ranks():
    """18 bytes per parameter on one GPU of ZeRO-2; 16 of what set-up adds; of 64 ranks a node has eight."""
    values = {
        name: readings_of(PEAKS[name])["host_memory", "account"].value / (PEAKS[name].parameters_B * 1e9)
        for name in HOST
    }
    assert values["deepspeed_t5_3b"] == pytest.approx(18, rel=1e-3)
    assert values["deepspeed_llama_7b_rise"] == pytest.approx(16, rel=1e-3)
    assert values["deepspeed_100b"] == pytest.approx(20 / 8, rel=1e-3)


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

SUITE = "docs/suites/memory_published.md"


def test_the_docs_have_the_errors_of_the_committed_run():
    lines = (ROOT / SUITE).read_text().splitlines()
    errors = {}
    for record in read_records(ROOT / "results" / "reference" / "memory_published"):
        method = "megatron" if record.cell.workload in MEGATRON else "fake_step"
        if record.conditions["kind"] != "host":
            (error,) = measurement(record, "relative_error", method).samples
            errors[record.cell.workload] = 100 * error
    assert errors.keys() == PEAKS.keys() - HOST
    in_groups = 0
    for words, names in GROUPS.items():
        (line,) = [one for one in lines if one.startswith("|") and words in one]
        of_group = [error for name, error in errors.items() if re.match(names, name)]
        worst, in_groups = max(of_group, key=abs), in_groups + len(of_group)
        shown = [len(of_group), f"{median(map(abs, of_group)):.2f} %", f"{worst:+.2f} %".replace("-", "−")]
        assert line.endswith("| " + " | ".join(map(str, shown)) + " |")
    assert len(errors) == in_groups
    within = f"{sum(abs(error) < 2 for error in errors.values())} of {len(errors)}"
    for page, sentence in (
        (SUITE, f"{within} peaks are predicted within 2 %"),
        ("README.md", f"{within} within 2 %"),
        ("docs/suites/memory.md", f"{within} published peaks are predicted within 2 %"),
    ):
        assert sentence in " ".join((ROOT / page).read_text().split()), page
