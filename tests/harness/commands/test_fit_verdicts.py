"""What can turn an answer of harness.fit is said: the optimizer, reserved bytes, and memory of the host."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.commands.entry import DONE, NO
from harness.commands.fit import command as fit
from harness.config.code_fingerprint import ROOT

pytest.importorskip("transformers", reason="the extra `hf` brings it")
pytestmark = pytest.mark.usefixtures("of_one_process")

CONFIGS = ROOT / "tests/data/configs"
LLAMA_70B = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
QWEN_32B = {"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64}


def answer(capsys: pytest.CaptureFixture[str], folder: Path, model: Path, *words: str) -> tuple[int, str]:
    """Return the exit status, and what was printed as one line."""
    status = fit.main([f"model={model}", *words, "what_ifs=false", f"out={folder}/fit"])
    return status, " ".join(capsys.readouterr().out.split())


def changed(folder: Path, name: str, **changes: object) -> Path:
    """Return a config.json with other sizes."""
    path = folder / name
    path.write_text(json.dumps(json.loads((CONFIGS / name).read_text()) | changes))
    return path


def test_torchs_default_optimizer_on_cuda_turns_the_verdict(tmp_path, capsys):
    """Foreach keeps temporaries as large as the parameters: 2 GB in 4 B each, where 1.8 GB are free."""
    model = changed(tmp_path, "llama-3.2-1b.json", num_hidden_layers=4)
    words = ("device=10.3GB", "seq_len=256", "techniques=[mixed_precision,attention]")
    status, said = answer(capsys, tmp_path, model, *words)
    assert status == DONE
    assert re.search(r"fits: micro-batch \d+ at most \(9\.\d of 9\.9 GB", said)
    default = "Assumed: a fused optimizer. With torch's default on CUDA (foreach) micro-batch 1 does not fit"
    assert default in said
    default = "techniques=[mixed_precision,attention,{optimizer: {impl: default}}]"
    assert answer(capsys, tmp_path, model, *words[:2], default)[0] == NO


def test_a_for_loop_over_parameters_does_not_fit_under_zero_2(tmp_path, capsys):
    """A thread ran out of memory in Adam: 28.28 GiB allocated and 3.14 wanted, 4 B per parameter and rank."""
    status, said = answer(
        capsys,
        tmp_path,
        CONFIGS / "llama-2-7b.json",
        "device=31.75GiB",
        "devices=8",
        "seq_len=1024",
        "techniques=[{zero: {stage: 2}},mixed_precision,activation_checkpointing,attention]",
    )
    assert status == DONE
    assert "With a for-loop over parameters micro-batch 1 does not fit; none at all." in said


def test_states_on_the_host_need_its_memory(tmp_path, capsys):
    """16 B per parameter, of eight ranks on one host: 80 layers of 8 key-value heads, and two embeddings."""
    h, ffn, layers, vocab = 8192, 28672, 80, 32000
    parameters = layers * (2 * h * h + 2 * h * h // 8 + 3 * h * ffn + 2 * h) + 2 * vocab * h + h
    model = changed(tmp_path, "llama-2-7b.json", **LLAMA_70B, num_attention_heads=64, num_key_value_heads=8)
    _, said = answer(
        capsys,
        tmp_path,
        model,
        "device=a100_80gb",
        "devices=8",
        "techniques=[{fsdp2: {cpu_offload: true}},mixed_precision,attention,activation_checkpointing]",
    )
    found = re.search(r"Host memory: ([\d,]+) GB per host of 8 ranks", said)
    assert found is not None
    assert int(found[1].replace(",", "")) == round(16 * parameters / 1e9)
    assert "twice as much" in said  # pinned blocks


def test_reserved_bytes_decide_in_the_first_line(tmp_path, capsys):
    """A peak of 79.2 GB fits into 83.8; torch's segments do not, and expandable ones do."""
    changes = {**QWEN_32B, "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064}
    status, said = answer(
        capsys,
        tmp_path,
        changed(tmp_path, "qwen2.5-0.5b.json", **changes, tie_word_embeddings=False),
        "device=h100_80gb",
        "devices=16",
        "seq_len=20000",
        "techniques=[fsdp1,mixed_precision,attention,activation_checkpointing]",
    )
    assert status == NO
    assert said.startswith(
        "does not fit: no micro-batch does; 1 has a peak of 79.2, for which torch reserves"
    )
    assert "With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True micro-batch 1 fits too." in said


def test_what_routing_needs_is_stated_as_the_verdict_is(tmp_path, capsys):
    """All of a layout's figures count fragmentation, so that 1.2 times the mean lies between the two."""
    model = ROOT / "tests/data/configs/mixtral-8x7b.json"
    words = ["devices=16", "device=h100_80gb", "seq_len=4096", f"out={tmp_path}/fit"]
    fit.main([f"model={model}", "layout=tp:2,ep:4,etp:2,pp:2", *words])
    said = " ".join(capsys.readouterr().out.split())
    needed = float(said.split(": ")[1].split(" of ")[0])
    even, uneven = (
        float(said.split(f" GB where {who}")[0].split()[-1]) for who in ("experts", "the busiest")
    )
    first, last = said.split("the first has ")[1].split(" GB.")[0].split(" GB, the last ")
    assert even < needed < uneven
    assert max(float(first), float(last)) == pytest.approx(needed, rel=2e-3)
