"""What harness.fit refuses, in one line, and the sizes and devices that it takes in any case."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_config import config

from harness.commands.entry import MISTAKE
from harness.commands.fit import command as fit
from harness.commands.fit.question import hardware_words, question_of
from harness.commands.grammar import device_of
from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError

pytestmark = pytest.mark.usefixtures("of_one_process")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model=none.json"], "No such file"),
        (["model=meta-llama/Llama-3.1-8B"], "hf download meta-llama/Llama-3.1-8B config.json"),
        (
            ["model=CONFIG", "device=H100"],
            "device=H100: expected a size such as 48GB or 44.5GiB; did you mean h100_",
        ),
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
        (["model=CONFIG", "devices=2", "techniques=[]"], "none of techniques uses more than one"),
        (["model=CONFIG", "devices=3", "techniques=[tensor_parallel]"], "not a technique of harness.fit"),
        (["model=CONFIG", "techniques=[pipeline]"], "python -m harness suite=memory has it"),
        (["model=CONFIG", "device=0.1GB"], "device of 0.1 GB: 0.4 GB of CUDA context outside of torch's"),
        (["model=CONFIG", "techniques=[host_update]"], "fsdp2: {cpu_offload: true}"),
        (["model=CONFIG", "devices=3", "optimizer=muon"], "fsdp2 is in the default recipe"),
        (["model=CONFIG", "optimizer=paged_adamw_8bit"], "adamw_8bit has the same states on the device"),
        (["devices=2"], "model: missing"),
        (["model"], "expected KEY=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.replace("CONFIG", config(tmp_path)) for word in words]
    assert fit.main([*given, *([f"out={tmp_path}/o"] if len(given) > 1 else [])]) == MISTAKE
    error = capsys.readouterr().err
    assert said in error
    assert "as in techniques=[mixed_precision]" not in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("size", ["24gb", "24GB", "24 Gb", "22.3517gib"])
def test_a_size_has_any_case(size: str) -> None:
    _, *given = hardware_words(device_of(size))
    assert [round(float(word.partition("=")[2]) / 1e9, 3) for word in given] == [24, 24]


def test_a_loop_over_tokens_is_refused_at_once(tmp_path: Path) -> None:
    words = [f"model={config(tmp_path, model_type='mamba')}"]
    with pytest.raises(ConfigError, match="seq_len=256: transformers runs mamba token by token"):
        question_of(words)
    question_of([*words, "seq_len=128"])


def test_a_device_has_any_case() -> None:
    assert device_of("H100_80GB") == device_of("h100_80gb")


def test_results_of_a_sweep_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suite, said in (("kernels", "results of a sweep of suite kernels"), ("memory", "suite memory")):
        out = tmp_path / suite
        shutil.copytree(ROOT / "results" / "reference" / suite, out)
        before = (out / "plan.json").read_text()
        assert fit.main([f"model={config(tmp_path)}", f"out={out}"]) == MISTAKE
        assert said in capsys.readouterr().err
        assert (out / "plan.json").read_text() == before
