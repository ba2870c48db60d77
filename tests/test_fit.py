"""harness.fit: whether a step fits, compared with every micro-batch tried, and with closed formulas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_steps import CUDA, LLAMA

from harness import fit
from harness.fit_question import question_of
from harness.store import read_records
from harness.validation import ConfigError
from suites.training.dry_run import dry_run
from suites.training.techniques import build_step

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 4000,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


def config(folder: Path, **changes: object) -> str:
    path = folder / "small.json"
    path.write_text(json.dumps(CONFIG | changes))
    return str(path)


def asked(folder: Path, *words: str, **changes: object) -> tuple[int, dict[str, float]]:
    """Return the exit status, and the last sample of every metric of the recipe's record."""
    out = folder / "fit"
    given = [f"model={config(folder, **changes)}", "what_ifs=false", f"out={out}", *words]
    given += [] if any(word.startswith("seq_len=") for word in words) else ["seq_len=64"]
    status = fit.main(given)
    found = next(
        one for one in read_records(out) if one.cell.config["workload"]["search"] == "largest_micro_batch"
    )
    return status, {one.metric: one.samples[-1] for one in found.measurements}


def at(values: dict[str, float], metric: str) -> dict[int, float]:
    """Return a metric of each dry run by micro-batch."""
    names = (name.split("/", 2) for name in values if name.startswith("at_micro_batch/"))
    return {int(size): values[f"at_micro_batch/{size}/{name}"] for _, size, name in names if name == metric}


def test_the_largest_is_that_of_trying_every_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, values = asked(tmp_path, "device=560MB", "techniques=[mixed_precision]")
    largest = int(values["largest_micro_batch"])
    assert status == fit.FITS
    assert 2 < largest < 64
    fits = at(values, "fits")
    assert (fits[largest], fits[largest + 1]) == (1, 0)
    assert capsys.readouterr().out.startswith(f"fits: micro-batch {largest} at most")
    for size in (largest // 2, largest - 1, largest, largest + 1, largest + 2):
        own = tmp_path / f"at_{size}"
        own.mkdir()
        status, one = asked(own, "device=560MB", "techniques=[mixed_precision]", f"micro_batch_size={size}")
        assert status == (fit.FITS if size <= largest else fit.DOES_NOT_FIT)
        assert int(one["largest_micro_batch"]) == largest


def test_a_micro_batch_that_is_too_large_is_scaled_down(tmp_path: Path) -> None:
    """Flash attention's random state has 8 bytes, however many sequences there are."""
    words = ("device=560MB", "techniques=[mixed_precision,attention]")
    own = tmp_path / "one"
    own.mkdir()
    _, one = asked(own, *words)
    status, many = asked(tmp_path, *words, "micro_batch_size=64")
    assert status == fit.DOES_NOT_FIT
    assert many["largest_micro_batch"] == one["largest_micro_batch"]
    assert many["largest_micro_batch_predicted"] == pytest.approx(one["largest_micro_batch"], abs=1)


def test_kinds_sum_to_the_peak_and_states_are_those_of_adamw(tmp_path: Path) -> None:
    _, values = asked(tmp_path, "device=h100_80gb", "techniques=[mixed_precision]")
    for size, peak_B in at(values, "peak_memory").items():
        kinds = [v for name, v in values.items() if name.startswith(f"at_micro_batch/{size}/peak_memory/")]
        assert sum(kinds) == peak_B
    states_B = values["at_micro_batch/1/peak_memory/optimizer_states"]
    assert states_B == pytest.approx(8 * values["parameters"], rel=0.01)


@pytest.mark.parametrize(
    ("changes", "label"), [({"vocab_size": 32000}, "logits"), ({"vocab_size": 40}, "attention scores")]
)
def test_what_decides_is_named(
    changes: dict[str, int], label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("device=2GB", "techniques=[mixed_precision]", "seq_len=256")
    _, values = asked(tmp_path, *words, **changes)
    said = capsys.readouterr().out
    assert f"What decides at {int(values['largest_micro_batch']) + 1}: {label}" in said
    size = int(values["largest_micro_batch"]) + 1
    live = [v for name, v in values.items() if name.startswith(f"at_micro_batch/{size}/live_at_peak/{label}")]
    columns = changes["vocab_size"] if label == "logits" else 4 * 256
    elements = size * 256 * columns
    assert live
    assert all(one % elements == 0 for one in live)  # whole tensors of that shape
    assert max(live) >= 2 * elements


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model=none.json"], "No such file"),
        (["model=meta-llama/Llama-3.1-8B"], "hf download meta-llama/Llama-3.1-8B config.json"),
        (["model=CONFIG", "device=h100"], "device=h100: expected a size such as 48GB"),
        (["model=CONFIG", "device=0GB"], "above 0"),
        (["model=CONFIG", "devices=0"], "devices=0: expected a whole number of at least 1"),
        (["model=CONFIG", "devices=two"], "expected a whole number"),
        (["model=CONFIG", "seq_len=512"], "expected at most max_position_embeddings (256)"),
        (["model=CONFIG", "batch=4"], "batch: no such name"),
        (["model=CONFIG", "techniques=[fsdp3]"], "did you mean fsdp"),
        (
            ["model=CONFIG", "devices=4", "techniques=[mixed_precision]"],
            "none of techniques uses more than one",
        ),
        (["devices=2"], "model: missing"),
        (["model"], "expected KEY=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.replace("CONFIG", config(tmp_path)) for word in words]
    assert fit.main([*given, *([f"out={tmp_path}/o"] if len(given) > 1 else [])]) == fit.MISTAKE
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_without_a_recipe_several_devices_share_the_model(tmp_path: Path) -> None:
    def recipe(*words: str) -> set[str]:
        run = question_of([f"model={config(tmp_path)}", *words]).run
        return {name for name, _ in run.variants[0].techniques}

    assert recipe() == {"mixed_precision", "attention"}
    assert recipe("devices=2") == {"fsdp2", "mixed_precision", "attention"}
    with pytest.raises(ConfigError, match="what_ifs=maybe"):
        recipe("what_ifs=maybe")


@pytest.mark.parametrize(
    "techniques",
    [
        [],
        [("mixed_precision", {}), ("attention", {})],
        [("fsdp2", {}), ("mixed_precision", {}), ("activation_checkpointing", {})],
        [("mixed_precision", {}), ("optimizer", {"name": "adamw_8bit"})],
        [("bf16_states", {})],
    ],
    ids=lambda value: "+".join(name for name, _ in value) or "baseline",
)
def test_a_first_step_made_from_the_second_reserves_what_a_traced_one_does(techniques) -> None:
    step = build_step(replace(LLAMA, dp_size=4), techniques)
    traced = dry_run(step, CUDA)
    made = dry_run(step, CUDA, make_first_step=True)
    assert (made.peak_B, made.reserved_B, made.by_kind_B) == (
        traced.peak_B,
        traced.reserved_B,
        traced.by_kind_B,
    )
