"""`harness.advise`: what its words mean, and what it answers, against the suite's own readings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.commands.advise import command
from harness.commands.advise.question import question_of
from harness.config.validation import ConfigError

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "llama-8b.json"
    path.write_text(json.dumps(LLAMA))
    return f"model={path}"


@pytest.mark.parametrize(
    ("link", "rate_B_per_s", "network"),
    [
        ("400gbit", 50e9, "infiniband"),
        ("400Gbps", 50e9, "infiniband"),
        ("3.2tbit/node", 50e9, "infiniband"),
        ("3200gbit/node,efa", 50e9, "efa"),
        ("10gbit", 1.25e9, "infiniband"),
    ],
)
def test_links_are_rates_per_gpu_in_bits(model: str, link: str, rate_B_per_s: float, network: str):
    fields = question_of([model, "gpus=16", f"link={link}"]).workload
    assert (fields["network_B_per_s"], fields["network"]) == (pytest.approx(rate_B_per_s), network)


@pytest.mark.parametrize(("tokens", "sequences"), [("4M", 512), ("4194304", 512), ("512k", 64), ("1M", 128)])
def test_a_batch_in_tokens_is_one_in_sequences(model: str, tokens: str, sequences: int):
    question = question_of([model, "gpus=16", "seq_len=8192", f"tokens_per_batch={tokens}"])
    assert question.workload["global_batch_size"] == sequences


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "gpus: missing"),
        (["gpus=16", "link=400GB/s"], "link=400GB/s: did you mean 400gbit or 3200gbit?"),
        (["gpus=16", "link=fast"], "link=fast: expected a rate per GPU as 400gbit"),
        (["gpus=16", "link=400tbit"], "expected 0.8 to 1600"),
        (["gpus=16", "link=400gbit,tcp"], "expected infiniband or efa"),
        (["gpus=16", "device=48GB"], "device=48GB: seconds need a GPU's rates"),
        (["gpus=16", "tokens_per_batch=7", "seq_len=8192"], "no whole number of sequences"),
        (["gpus=16", "mine=4.1s"], "mine: needs the layout of your run"),
        (["gpus=16", "layout=tp:8", "mine=fast"], "mine=fast: expected the seconds of your step"),
        (["gpus=16", "layout=qp:8"], "layout=qp:8: no such name; .*tp"),
        (["gpus=16", "layout=dp:4,tp:8"], "dp × tp × pp × cp = 32, and devices=16"),
        (["gpus=16", "colour=red"], "colour: no such name"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(model: str, words: list[str], message: str):
    with pytest.raises(ConfigError, match=message) as refused:
        question_of([model, *words])
    assert "\n" not in str(refused.value)


def test_an_answer_names_layouts_intervals_memory_and_switches(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    words = [model, "gpus=8", "seq_len=8192", "tokens_per_batch=1M", "price=2", f"out={tmp_path / 'out'}"]
    assert command.main(words) == 0
    said = capsys.readouterr().out
    first = said.splitlines()[0]
    assert "ZeRO-1" in first
    assert "s per step (90 %:" in first
    for expected in (
        "TFLOP/s per GPU",
        "MFU",
        "At $2 per GPU-hour",
        "What each switch of the first is worth",
    ):
        assert expected in said
    assert max(map(len, said.splitlines())) <= 160
    assert command.main(words) == 0  # from its records
    assert capsys.readouterr().out == said


def test_ones_own_step_is_compared_with_the_prediction(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    words = [
        model,
        "gpus=16",
        "seq_len=8192",
        "layout=tp:4",
        "global_batch_size=64",
        f"out={tmp_path / 'out'}",
    ]
    assert command.main([*words, "mine=600s"]) == 0
    said = capsys.readouterr().out
    assert "above the 90 % interval" in said
    assert "What would explain it, the nearest first" in said
    assert "a network 10 times slower" in said


@pytest.mark.parametrize(("device", "message"), [("mi300x", "seconds are not known"), ("t4", "bf16 matmuls")])
def test_a_device_that_was_not_compared_is_not_known(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str, message: str
):
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    assert command.main([model, "gpus=16", f"device={device}", f"out={tmp_path / 'out'}"]) == 2
    assert message in capsys.readouterr().err
