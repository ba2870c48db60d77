"""harness.fit: whether a step fits, compared with every micro-batch tried, and with closed formulas."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from small_config import CONFIG, config
from small_steps import LLAMA

from harness.commands.entry import DONE, MISTAKE, NO
from harness.commands.fit import command as fit
from harness.commands.fit.answer import Answer, WhatIfResult
from harness.commands.fit.lines import lines
from harness.commands.fit.question import question_of
from harness.commands.main import main
from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.instruments.memory.memory_timeline import OpSite
from harness.records import Record, Status
from harness.sweep.store import read_records
from suites.memory import largest_batch
from suites.memory.largest_batch import Fit
from suites.memory.live_tensors import group_of
from suites.training.techniques import build_step

pytestmark = pytest.mark.usefixtures("of_one_process")


def asked(folder: Path, *words: str, **changes: object) -> tuple[int, dict[str, float]]:
    """Return the exit status, and the last sample of every metric of the recipe's record."""
    out = folder / "fit"
    given = [f"model={config(folder, **changes)}", "what_ifs=false", f"out={out}", *words]
    given += [] if any(word.startswith("seq_len=") for word in words) else ["seq_len=64"]
    status = fit.main(given)
    latest = max(out.glob("*/records.jsonl"), key=lambda file: file.stat().st_mtime_ns)
    found = next(
        one
        for one in read_records(latest.parent)
        if one.cell.config["workload"]["search"] == "largest_micro_batch"
    )
    return status, {one.metric: one.samples[-1] for one in found.measurements}


def at(values: dict[str, float], metric: str) -> dict[int, float]:
    """Return a metric of each dry run by micro-batch."""
    names = (name.split("/", 2) for name in values if name.startswith("at_micro_batch/"))
    return {int(size): values[f"at_micro_batch/{size}/{name}"] for _, size, name in names if name == metric}


def test_the_largest_is_that_of_trying_every_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, values = asked(tmp_path, "device=560MB", "techniques=[mixed_precision]")
    largest = int(values["largest_micro_batch"])
    assert status == DONE
    assert 2 < largest < 64
    fits = at(values, "fits")
    assert (fits[largest], fits[largest + 1]) == (1, 0)
    assert capsys.readouterr().out.startswith(f"fits: micro-batch {largest} at most")
    for size in (largest // 2, largest + 1):
        own = tmp_path / f"at_{size}"
        own.mkdir()
        status, one = asked(own, "device=560MB", "techniques=[mixed_precision]", f"micro_batch_size={size}")
        assert status == (DONE if size <= largest else NO)
        assert int(one["largest_micro_batch"]) == largest


def test_a_micro_batch_that_is_too_large_is_scaled_down(tmp_path: Path) -> None:
    """Flash attention's random state has 8 bytes, however many sequences there are."""
    words = ("device=560MB", "techniques=[mixed_precision,attention]")
    own = tmp_path / "one"
    own.mkdir()
    _, one = asked(own, *words)
    status, many = asked(tmp_path, *words, "micro_batch_size=64")
    assert status == NO
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


def test_flash_attention_is_left_out_where_the_model_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bloom = {"model_type": "bloom", "n_layer": 2, "hidden_size": 64, "n_head": 4, "vocab_size": 400}
    file = tmp_path / "bloom.json"
    file.write_text(json.dumps(bloom))
    given = [f"model={file}", "seq_len=64", "device=700MB", "what_ifs=false", f"out={tmp_path}/o"]
    assert fit.main(given) == DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "Techniques: mixed precision." in said
    assert "has no SDPA attention for BloomForCausalLM, so the default recipe goes without." in said
    assert "not tried: flash attention" not in said
    assert fit.main([*given, "techniques=[attention]"]) == MISTAKE
    assert "leave out the technique attention" in capsys.readouterr().err


def test_an_old_device_has_no_fused_attention_in_bf16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        f"model={config(tmp_path)}",
        "seq_len=64",
        "device=v100_32gb",
        "what_ifs=false",
        f"out={tmp_path}/o",
    ]
    assert fit.main(given) == DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "Techniques: mixed precision." in said
    assert "bf16 from Ampere on, and this device is older, so the default recipe goes without." in said


def test_no_technique_is_plain_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, values = asked(tmp_path, "device=560MB", "techniques=[]")
    assert status == DONE
    assert values["peak_memory/parameters"] == pytest.approx(4 * values["parameters"], rel=0.01)
    assert "Techniques: none, plain PyTorch." in capsys.readouterr().out


def test_the_answer_names_the_model_and_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("devices=2", "optimizer=muon", "techniques=[ddp,{loss:{chunks:8}}]", "device=3GB")
    left = ("num_hidden_layers", "intermediate_size", "vocab_size")
    file = tmp_path / "own.json"
    file.write_text(json.dumps({key: size for key, size in CONFIG.items() if key not in left}))
    fit.main([f"model={file}", *words, "seq_len=64", "what_ifs=false", f"out={tmp_path}/o"])
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "own.json, 72.3 M parameters; 2 × device of 3 GB, 64 tokens per sequence, muon."
    assert said[2] == "Techniques: ddp, loss (chunks=8)."
    assert said[3] == "by default: num_hidden_layers 32, vocab_size 32000, intermediate_size 11008"


def test_a_failed_check_is_explained(tmp_path: Path) -> None:
    question = question_of([f"model={config(tmp_path)}"])
    record = Record(next(iter(read_records(ROOT / "results/reference/memory"))).cell, Status.WRONG_RESULT)
    assert fit.failure(question, record._replace(reason="loss of update 2 is 4.1")).endswith(
        "a small model trained with it differs from plain PyTorch: loss of update 2 is 4.1"
    )


def test_the_cache_is_freed_one_time_and_no_micro_batch_is_none(tmp_path: Path) -> None:
    shutil.copy(ROOT / "results/reference/fit/llama-3.1-8b.jsonl", tmp_path / "records.jsonl")
    records = list(read_records(tmp_path))
    searched = [one.cell.config["workload"]["search"] == "largest_micro_batch" for one in records]

    def changed(record: Record, metric: str, sample: float) -> Record:
        assert metric in [one.metric for one in record.measurements]
        measurements = (
            one._replace(samples=(sample,)) if one.metric == metric else one for one in record.measurements
        )
        return record._replace(measurements=tuple(measurements))

    recipe = changed(records[searched.index(True)], "at_micro_batch/6/allocator_retries", 1)
    none = changed(records[searched.index(False)], "largest_micro_batch_predicted", 0)
    answer = Answer(recipe, question_of([f"model={config(tmp_path)}"]))
    said = list(lines(answer, [WhatIfResult("a change", "", none)]))
    assert "At 6 the allocator frees its cache 1 time in two steps to make room, which slows them." in said
    (row,) = (line for line in said if line.startswith("  a change"))
    assert row.split()[-1] == "none"


def test_version_and_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    assert main(["--version"]) == fit.main(["--version"]) == DONE
    one, other = capsys.readouterr().out.splitlines()
    assert one == other

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def stop(run: object) -> None:
        raise ConfigError("stopped")

    monkeypatch.setattr("harness.sweep.sweep.sweep", stop)
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    assert fit.main([f"model={config(tmp_path)}", f"out={tmp_path}/o"]) == MISTAKE
    assert terminal.getvalue() == "dry run of small.json ...\nharness.fit: stopped\n"


def test_what_ifs_predict_what_their_own_search_finds(tmp_path: Path) -> None:
    """Hidden size and sequence length are equal, so that one sequence's tensors look like weights."""
    words = [f"model={config(tmp_path)}", "seq_len=64", "device=1.3GB", "devices=2", f"out={tmp_path}/o"]
    assert fit.main(words) == DONE
    tried = [one for one in question_of(words).what_ifs if not one.reason]
    records = {one.cell.optimization: one for one in read_records(question_of(words).run.out)}
    assert len(tried) >= 3
    for one in tried:
        found = {m.metric: m.samples[-1] for m in records[one.variant].measurements}
        recipe = json.dumps([{name: dict(own)} for name, own in one.recipe]).replace('"', "")
        own = tmp_path / f"own {len(list(tmp_path.iterdir()))}"
        own.mkdir()
        _, values = asked(own, "device=1.3GB", "devices=2", f"techniques={recipe}")
        assert found["largest_micro_batch_predicted"] == values["largest_micro_batch"], one.title


def test_the_largest_is_the_first_after_which_more_do_not_fit(monkeypatch) -> None:
    """From 109 on the allocator frees its cache in time again, and from 128 on nothing helps."""

    def predicted(subject, run, workload, count):
        return Fit(count <= 107 or count in (109, 126, 127), int(count > 107))

    monkeypatch.setattr(largest_batch, "predicted_fit", predicted)
    step = build_step(LLAMA, ())
    subject = type("Subject", (), {"step": step})()
    assert largest_batch.predicted_largest(subject, None, 1, 0, 1000) == 107


def test_activations_are_no_scores_where_the_hidden_size_is_the_sequence_length() -> None:
    def subject(operation: str, *shape: int) -> str:
        return group_of("activations", OpSite("forward 0", operation, shape), 500, 64).subject

    assert subject("aten.mul.Tensor", 2, 64, 64) == "activations kept for the backward pass"
    assert subject("aten._softmax.default", 2, 4, 64, 64) == "attention scores"
    assert subject("aten.bmm.default", 8, 64, 64) == "attention scores"


def test_without_a_recipe_several_devices_share_the_model(tmp_path: Path) -> None:
    def recipe(*words: str) -> set[str]:
        run = question_of([f"model={config(tmp_path)}", *words]).run
        return {name for name, _ in run.variants[0].techniques}

    assert recipe() == {"mixed_precision", "attention"}
    assert recipe("devices=2") == {"fsdp2", "mixed_precision", "attention"}
    with pytest.raises(ConfigError, match="what_ifs=maybe"):
        recipe("what_ifs=maybe")
