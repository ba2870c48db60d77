"""harness.fit's numbers: those printed, those in answer.json, and those of the dry run and of the account."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from own_texts import MEGATRON, TITAN
from small_config import CONFIG, config

from harness.answer import Answer, Memory
from harness.ask import fit
from harness.ask.recipe import what_ifs_of, with_techniques
from harness.ask.words import FIT, question_from, words_of
from harness.commands.entry import DEPENDS, DONE, NO
from harness.config.code_fingerprint import ROOT
from harness.frameworks.read import read_own_text
from harness.question import DryRunRequest, Question
from harness.records import Unavailable
from suites.training import dry_run_engine
from suites.training.dry_run.largest_batch import fit_of, outside_allocator_B, search

pytest.importorskip("transformers", reason="the extra `hf` brings it")

LARGER = {"hidden_size": 1024, "intermediate_size": 2752, "vocab_size": 32000, "num_attention_heads": 8}
LARGER |= {"num_key_value_heads": 8}
PARAMETERS = 2 * 32000 * 1024 + 2 * (4 * 1024**2 + 3 * 1024 * 2752 + 2 * 1024) + 1024


class Fitted(NamedTuple):
    status: int
    lines: list[str]
    disk: dict[str, Any]


def fitted(folder: Path, words: str) -> Fitted:
    """Return what the command prints, and its answer.json."""
    text = StringIO()
    with redirect_stdout(text):
        status = fit.main([*words.split(), f"out={folder / 'out'}"])
    latest = max((folder / "out").glob("*/answer.json"), key=lambda file: file.stat().st_mtime_ns)
    return Fitted(status, text.getvalue().splitlines(), json.loads(latest.read_text()))


def asked(words: str) -> Question:
    """Return a question with its recipe as techniques, as the engine gets it."""
    return with_techniques(question_from(words_of(words.split(), FIT)))[0]


def answered(question: Question, **request: Any) -> Answer:
    """Return the dry run's last answer, from this process."""
    return list(dry_run_engine.answers(DryRunRequest(question=question, **request)))[-1]


def memory_of(answer: Answer) -> Memory:
    assert answer.memory is not None
    return answer.memory


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Fitted]:
    """Return the words of a step that fits with room for a second sequence, and the command's answer."""
    folder = tmp_path_factory.mktemp("dry")
    words = f"model={config(folder, **LARGER)} device=3GB seq_len=128 micro_batch_size=2"
    return words, fitted(folder, f"{words} show=all")


def test_what_a_dry_run_prints_is_what_it_keeps(dry: tuple[str, Fitted]) -> None:
    _, (status, lines, disk) = dry
    memory = disk["memory"]
    assert (status, disk["verdict"], disk["reason"], disk["engine"]) == (DONE, "fits", "", "dry run")
    allocated, low, high = (disk[f"peak_allocated{end}_GB"] for end in ("", "_low", "_high"))
    room = memory["room_B"] / 1e9
    assert lines[0].startswith(
        f"fits: {allocated:.1f} of {room:.1f} GB per GPU at micro-batch 2 (90 %: {low:.1f} … {high:.1f})"
    )
    assert f"reserves {disk['peak_reserved_GB']:.1f}" in lines[0]
    assert disk["peak_reserved_low_GB"] <= disk["peak_reserved_GB"] <= disk["peak_reserved_high_GB"]
    assert "step_s" not in disk
    assert disk["answer_seconds"] > 0
    said = "\n".join(lines)
    assert f"Micro-batch {memory['largest_micro_batch']:,} at most" in said
    assert f"{PARAMETERS / 1e6:.3g} M parameters" in said
    assert f"Room: {room:.1f} GB = 3.0 GB" in said
    (row,) = (line for line in lines if line.startswith("peak of live tensors"))
    peaks = {peak["micro_batch_size"]: peak for peak in memory["peaks"]}
    shown = [2, memory["largest_micro_batch"], memory["largest_micro_batch"] + 1]
    assert row.split()[4:] == [f"{peaks[size]['allocated_B'] / 1e9:.1f}" for size in shown]
    for change in (one for one in disk["changes"] if one["peak_B"] is not None):
        (row,) = (line for line in lines if line.startswith(f"  {change['title']}  "))
        assert f" {change['peak_B'] / 1e9:.1f} " in row
    assert "  seq_len=128 (command: seq_len)" in lines
    assert max(map(len, lines[: lines.index("Where each value comes from")])) <= 110


def test_a_dry_run_is_that_of_the_suite(dry: tuple[str, Fitted]) -> None:
    words, (_, _, disk) = dry
    memory = disk["memory"]
    runs = dry_run_engine.StepRuns(asked(words))
    largest, tried = search(runs.step, runs.target, runs.at)
    assert memory["largest_micro_batch"] == largest
    assert disk["parameters"] == PARAMETERS
    assert memory["usable_B"] == 3e9
    assert memory["room_B"] == 3e9 - sum(outside_allocator_B(runs.step).values())
    sizes = sorted({runs.requested, *tried})
    assert len(memory["peaks"]) == len(sizes)
    for peak, size in zip(memory["peaks"], sizes, strict=True):
        run = runs.at(size)
        fit = fit_of(runs.step, run, runs.target)
        own = (size, fit.fits, run.peak_B, run.reserved_B, fit.retries)
        names = ("micro_batch_size", "fits", "allocated_B", "reserved_B", "retries")
        assert tuple(peak[name] for name in names) == own
        assert sum(peak["by_kind_B"].values()) == run.peak_B
    assert memory["allocated_B"][1] == memory["peaks"][0]["allocated_B"]
    states_B = memory["peaks"][0]["by_kind_B"]["optimizer_states"]
    assert states_B == pytest.approx(8 * PARAMETERS, rel=0.01)  # two states of AdamW in 4 bytes


def test_the_largest_micro_batch_is_the_last_that_fits(dry: tuple[str, Fitted]) -> None:
    words, (_, _, disk) = dry
    largest = disk["memory"]["largest_micro_batch"]
    assert largest > 2
    for size, fits in ((largest, True), (largest + 1, False)):
        changed = asked(words.replace("micro_batch_size=2", f"micro_batch_size={size}"))
        answer = answered(changed, extent="asked")
        assert (answer.likely_fits, memory_of(answer).largest_micro_batch) == (fits, None)


def test_what_ifs_predict_what_their_own_question_finds(tmp_path: Path) -> None:
    """Hidden size and sequence length are equal, so that one sequence's tensors look like weights."""
    question = asked(f"model={config(tmp_path)} seq_len=64 device=1.3GB devices=2")
    changes = [one for one in what_ifs_of(question, False) if one.question is not None][:2]
    answer = answered(question, changes=tuple(changes))
    assert len(changes) == len(answer.changes) == 2
    for change, found in zip(changes, answer.changes, strict=True):
        assert change.question is not None
        own = memory_of(answered(change.question))
        assert found.title == change.title
        assert found.largest_micro_batch == own.largest_micro_batch
        assert found.peak_B == own.peaks[0].allocated_B


def test_torchs_default_optimizer_turns_the_verdict_before_a_line_is_printed(tmp_path: Path) -> None:
    """Foreach keeps temporaries as large as the parameters, 0.37 GB, for which there is no room."""
    model = f"model={config(tmp_path, **LARGER)} seq_len=64 techniques=[mixed_precision]"
    needed_B = memory_of(answered(asked(f"{model} device=h100_80gb"), extent="asked")).reserved_B.likely
    status, lines, disk = fitted(
        tmp_path, f"{model} what_ifs=false device={needed_B / 1e6 + 447 + 150:.0f}MB"
    )
    assert (status, disk["verdict"], disk["likely_fits"]) == (DEPENDS, "depends", True)
    assert {turn["kind"] for turn in disk["turns"]} == {"assumption"}
    assert lines[0].startswith("depends: ")
    assert lines[1].startswith("Depends on a fused optimizer")
    assert sum("micro-batch 1 (90 %" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("changes", "words", "without"),
    [
        ({"model_type": "bloom", "n_layer": 2, "n_head": 4}, "device=h100_80gb", "attention"),
        ({}, "device=v100_32gb", "attention"),
    ],
    ids=["a model without SDPA", "a device without fused attention in bf16"],
)
def test_what_is_only_assumed_is_left_out_where_it_cannot_be(
    tmp_path: Path, changes: dict[str, Any], words: str, without: str
) -> None:
    model = f"model={config(tmp_path, **changes)} seq_len=64 {words}"
    answer = answered(asked(model), extent="asked")
    assert answer.without == (without,)
    assert "goes without" in " ".join(answer.notes)
    with pytest.raises(Unavailable, match=without):
        answered(asked(f"{model} techniques=[mixed_precision,{without}]"), extent="asked")


def test_without_a_recipe_several_devices_share_the_model(tmp_path: Path) -> None:
    model = f"model={config(tmp_path)}"
    assert {name for name, _ in asked(model).techniques or ()} == {"mixed_precision", "attention"}
    several = {name for name, _ in asked(f"{model} devices=2").techniques or ()}
    assert several == {"fsdp2", "mixed_precision", "attention"}
    assert asked(f"{model} techniques=[]").techniques == ()


LLAMA = f"model={ROOT}/tests/data/configs/llama-3.1-8b.json"


@pytest.mark.parametrize(
    ("device", "status", "verdict", "what_ifs"),
    [
        ("80GB", DONE, "fits", "true"),
        ("20GB", DEPENDS, "depends", "false"),
        ("15GB", NO, "does not fit", "true"),
    ],
)
def test_what_an_account_prints_is_what_it_keeps(
    tmp_path: Path, device: str, status: int, verdict: str, what_ifs: str
) -> None:
    words = f"{LLAMA} devices=16 layout=tp:4,pp:2 seq_len=4096 global_batch_size=16"
    found = fitted(tmp_path, f"{words} device={device} what_ifs={what_ifs}")
    disk, memory = found.disk, found.disk["memory"]
    assert (found.status, disk["verdict"], disk["engine"]) == (status, verdict, "account")
    reserved, low, high = (disk[f"peak_reserved{end}_GB"] for end in ("", "_low", "_high"))
    room = memory["room_B"] / 1e9
    assert found.lines[0] == (
        f"{verdict}: {reserved:.1f} of {room:.1f} GB per GPU (90 %: {low:.1f} … {high:.1f})"
    )
    ends = {"fits": (True, True), "depends": (True, False), "does not fit": (False, False)}
    assert (low <= room, high <= room) == ends[verdict]
    assert found.lines[1].startswith("Depends on ") == (verdict == "depends")
    assert disk["layouts"][0]["parts"] | {"dp": 2, "tp": 4, "pp": 2} == disk["layouts"][0]["parts"]
    assert sum(memory["parts_B"].values()) == pytest.approx(memory["allocated_B"][1])
    assert memory["room_B"] == pytest.approx(memory["usable_B"] - sum(memory["outside_B"].values()))
    said = "\n".join(found.lines)
    largest = memory["largest_micro_batch"]
    assert (f"Micro-batch {largest} fits at most" if largest else "No micro-batch fits") in said
    assert ("What would change it" in said) == (what_ifs == "true")


def test_a_search_lists_layouts_that_each_fit_when_asked(tmp_path: Path) -> None:
    words = f"{LLAMA} devices=16 seq_len=4096 device=a100_40gb"
    found = fitted(tmp_path, f"{words} layout=search what_ifs=false")
    disk = found.disk
    assert found.status == DONE
    assert found.lines[0].startswith(f"{disk['layouts_that_fit']} of {disk['layouts_tried']} layouts fit")
    assert disk["layouts_that_fit"] >= len(disk["layouts"]) > 1
    for layout in disk["layouts"][:3]:
        parts = layout["parts"]
        named = ",".join(
            f"{name}:{parts[name]}" for name in ("tp", "pp", "cp", "ep", "zero", "virtual_stages")
        )
        recompute = ("none", "selective", "full")[parts["recompute"]]
        own = fitted(tmp_path, f"{words} layout={named} recompute={recompute}").disk
        assert own["memory"]["largest_micro_batch"] == layout["largest_micro_batch"]
    few = f"{LLAMA} devices=1 seq_len=100000 device=a100_40gb layout=search"
    none = fitted(tmp_path, few)
    assert (none.status, none.disk["verdict"], none.disk["layouts"]) == (NO, "does not fit", [])


def test_what_routing_needs_is_stated_as_the_verdict_is(tmp_path: Path) -> None:
    """All of a layout's numbers count fragmentation, so that 1.2 times the mean lies between the two."""
    model = f"model={ROOT}/tests/data/configs/mixtral-8x7b.json devices=16 seq_len=4096"
    found = fitted(tmp_path, f"{model} layout=tp:2,ep:4,etp:2,pp:2")
    said = " ".join(found.lines)
    needed = float(said.split(": ")[1].split(" of ")[0])
    even, uneven = (
        float(said.split(f" GB where {who}")[0].split()[-1]) for who in ("experts", "the busiest")
    )
    first, last = re.findall(r"the first has ([\d.]+) GB, the last ([\d.]+) GB", said)[0]
    assert even < needed < uneven
    assert max(float(first), float(last)) == pytest.approx(needed, rel=2e-3)


AXOLOTL = {
    "base_model": "small", "sequence_len": 128, "micro_batch_size": 3, "gradient_accumulation_steps": 2,
    "bf16": True, "gradient_checkpointing": True, "fsdp_version": 2,
    "fsdp_config": {"reshard_after_forward": True}, "tiled_mlp": True,
}  # fmt: skip


@pytest.fixture
def axolotl(tmp_path: Path) -> str:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(CONFIG))
    path = tmp_path / "axolotl.yml"
    path.write_text(yaml.safe_dump(AXOLOTL))
    return f"config={path}"


def test_a_file_is_dry_run_as_its_words_would_be(axolotl: str) -> None:
    question = asked(f"{axolotl} devices=2")
    assert (question.devices, question.seq_len, question.micro_batch_size) == (2, 128, 3)
    assert question.config == CONFIG
    techniques = dict(question.techniques or ())
    assert {"fsdp2", "mixed_precision", "attention", "activation_checkpointing"} < techniques.keys()
    assert techniques["gradient_accumulation"]["steps"] == 2


def test_a_layout_of_a_file_fits_as_its_words_do_and_is_written_at_its_largest(tmp_path: Path) -> None:
    (tmp_path / "titan.toml").write_text(TITAN)
    found = fitted(tmp_path, f"config={tmp_path / 'titan.toml'} devices=16 write=torchtitan")
    said = "\n".join(found.lines)
    assert "Read as torchtitan: " in said
    again = read_own_text(said[said.index("[model]") :].partition("\nThis file")[0], "torchtitan", ".toml")
    assert (again.tp, again.zero, again.recompute) == (2, 3, "full")
    assert again.micro_batch_size == found.disk["memory"]["largest_micro_batch"]
    words = "layout=tp:2,zero:3 program=torchtitan recompute=full seq_len=8192 micro_batch_size=2"
    assert fitted(tmp_path, f"{LLAMA} devices=16 {words}").lines[0] == found.lines[0]


def test_keys_that_are_not_modelled_are_named(tmp_path: Path) -> None:
    (tmp_path / "megatron.sh").write_text(MEGATRON)
    found = fitted(tmp_path, f"config={tmp_path / 'megatron.sh'}")
    assert "moe_expert_capacity_factor" in "".join(found.lines)
    keys = {one["key"]: one["status"] for one in found.disk["question"]["keys"]}
    assert "not modelled" in keys.values()


OOM = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total "
    "capacity of 79.20 GiB of which 0.10 GiB is free. Including non-PyTorch memory, this process has 77.70 "
    "GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.25 GiB is reserved "
    "by PyTorch but unallocated."
)


def test_an_oom_message_is_explained(
    tmp_path: Path, axolotl: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 MiB are the logits of 3 × 128 tokens over 4,000 words, in 12 bytes."""
    path = tmp_path / "error.txt"
    path.write_text(OOM)
    assert fit.main([f"oom={path}", axolotl, "devices=2"]) == DONE
    said = " ".join(capsys.readouterr().out.split())
    for part in ("on rank 3", "384 tokens × 4,000", "expandable_segments"):
        assert part in said
    assert fit.main([f"oom={path}"]) == DONE
    assert "384 tokens" not in capsys.readouterr().out
