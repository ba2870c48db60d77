"""The page of `harness.advise serve=`, without a browser: its questions, its answers and its mistakes."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict
from own_texts import MEGATRON

from harness.ask import advise
from harness.ask.engines import answer_of
from harness.ask.page import server
from harness.ask.page.asked import AskedPage, first_question, layout_values
from harness.ask.page.figures import BYTES, memory_figure, timeline_figure
from harness.config.code_fingerprint import ROOT
from harness.question import Question

dash = pytest.importorskip("dash", reason="the extra `serve` brings it")

from harness.ask.page import app as page_app  # noqa: E402

CONFIG = ROOT / "tests/data/configs/llama-3.1-8b.json"
WORDS = [f"model={CONFIG}", "gpus=16", "seq_len=8192", "global_batch_size=64", "link=200gbit,efa"]
LAYOUT = "layout=tp:2,pp:4,virtual_stages:2,zero:1"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> AskedPage:
    return AskedPage([*WORDS, LAYOUT], tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def values(page: AskedPage) -> dict[str, Any]:
    return page.first_values()


def shown(page: AskedPage, values: dict[str, Any], view: str = "step", trigger: str = "tp") -> dict[str, Any]:
    return page_app.answered(page, values, view, trigger)


def said(part: Any) -> str:
    """Return all text of dash's components."""
    if isinstance(part, list | tuple):
        return " ".join(map(said, part))
    children = getattr(part, "children", None)
    return said(children) if children is not None else str(part)


def asked(question: Question) -> dict[str, Any]:
    """Return what is asked, without how it was said."""
    how = ("origins", "model_source", "model_name", "keys", "format", "framework")
    return {name: value for name, value in asdict(question).items() if name not in how}


def test_the_controls_ask_what_the_command_asked(page: AskedPage, values: dict[str, Any]) -> None:
    assert asked(first_question(page.words_of(values))) == asked(page.first)
    assert (values["model"], values["link"], values["network"]) == ("llama-3.1-8b", 200, "efa")
    changed = first_question(page.words_of({**values, "num_hidden_layers": 48, "tp": 4}))
    assert changed.config == {**(page.first.config or {}), "num_hidden_layers": 48}
    assert (changed.tp, changed.pp) == (4, 4)


def test_a_files_question_has_its_controls(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(MEGATRON)
    page = AskedPage([f"config={tmp_path / 'run.sh'}"], tmp_path)
    again = asked(first_question(page.words_of(page.first_values())))
    for name in ("config", "devices", "tp", "pp", "virtual_stages", "zero", "global_batch_size", "recompute"):
        assert (name, again[name]) == (name, asked(page.first)[name])


def test_without_a_model_it_begins_with_one_of_suite_layouts(tmp_path: Path) -> None:
    page = AskedPage([], tmp_path)
    assert (page.first_model, page.first.devices) == ("Llama-3.1-70B", 128)
    assert "DeepSeek-V3" in page.models
    for word in ("gpus=64", "devices=64"):
        first = AskedPage([word, "tokens_per_batch=2M"], tmp_path).first
        assert (first.devices, first.global_batch_size) == (64, 256)


def test_the_page_has_what_the_command_answers(page: AskedPage, values: dict[str, Any]) -> None:
    parts = shown(page, values)
    (one,) = answer_of(first_question([*WORDS, LAYOUT]), seconds=True).layouts
    assert one.step_s is not None
    headline = said(parts["parts"]["headline"])
    for text in (one.title, f"{(one.model_FLOP_per_s or 0) / 1e12:.0f}", f"{one.mfu:.0%}", "fits"):
        assert text in headline
    bars = parts["parts"]["timeline"]["data"]
    ends = [start + size for bar in bars for start, size in zip(bar["base"], bar["x"], strict=True)]
    assert max(ends) == pytest.approx(one.step_s.likely)
    memory = parts["parts"]["memory"]
    most_B = max(map(sum, zip(*(bar["x"] for bar in memory["data"]), strict=True))) * 1e9
    left_B = memory["layout"]["shapes"][0]["x0"] * 1e9 - most_B  # both have the context and NCCL's buffers
    assert left_B == pytest.approx(one.room_B - one.needed_B)


def test_controls_change_what_is_shown(page: AskedPage, values: dict[str, Any]) -> None:
    first = shown(page, values)
    other = shown(page, {**values, "recompute": "full"}, "totals")
    assert "Recompute" not in said(first["parts"]["timeline-legend"])
    assert "Recompute" in said(other["parts"]["timeline-legend"])
    assert first["parts"]["timeline"] != other["parts"]["timeline"]
    larger = shown(page, {**values, "model": "Llama-3.1-70B", "pp": 8}, trigger="model")
    assert larger["values"]["num_hidden_layers"] == 80
    assert "70.6 B" in said(larger["parts"]["headline"])


def test_the_button_finds_the_layout_that_the_command_has_first(
    page: AskedPage, values: dict[str, Any]
) -> None:
    new = shown(page, {**values, "recompute": "full"}, trigger="fastest")["values"]
    first = layout_values(answer_of(first_question(WORDS), seconds=True))
    now = {name: values[name] if value is dash.no_update else value for name, value in new.items()}
    assert {name: now[name] for name in first} == first
    assert now["recompute"] == "none"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pp": 3}, "tp × pp × cp = 2 × 3 × 1 = 6 does not divide the 16 GPUs"),
        ({"tp": None}, "tp: expected a whole number from 1 to"),
        ({"gpus": 10**9}, "gpus=1000000000: expected a whole number from 1 to 1,000,000"),
        ({"link": 0}, "link: expected a number above 0"),
        ({"link": 4e6}, "link=4e"),
        ({"device": "t4"}, "device=t4: seconds"),
        ({"program": "nanotron", "zero": 3}, "zero=3: nanotron has stages 0 to 1"),
        ({"num_key_value_heads": 7}, "num_key_value_heads"),
    ],
)
def test_a_mistake_is_one_line_and_the_rest_stays(
    page: AskedPage, values: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    refused = shown(page, {**values, **changed})
    assert message in refused["message"]
    assert len(refused["message"].splitlines()) == 1
    assert len(refused["message"]) < 300
    assert set(refused["parts"].values()) == {dash.no_update}
    assert shown(page, values)["message"] == ""


def test_it_is_served_with_its_first_answer_to_this_machine_alone(tmp_path: Path) -> None:
    served = page_app.app_of([*WORDS, LAYOUT], tmp_path).server
    client = served.test_client()
    assert "value-step" in client.get("/_dash-layout").get_data(as_text=True)
    assert 'lang="en"' in client.get("/").get_data(as_text=True)
    served.wsgi_app = server.loopback_only(served.wsgi_app)
    hosts = {"127.0.0.1:8050": 200, "localhost:8050": 200, "elsewhere.example:8050": 403}
    assert {host: client.get("/", headers={"Host": host}).status_code for host in hosts} == hosts
    with server.listener(0, "serve=0") as opened:
        assert opened.getsockname()[0] == "127.0.0.1"


def test_what_serves_never_imports_torch() -> None:
    code = "import sys, harness.ask.page.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


def test_a_page_that_cannot_be_served_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert advise.main([*WORDS, LAYOUT, f"serve={port}"]) == 2
    monkeypatch.setattr(server, "find_spec", lambda _: None)
    assert advise.main([*WORDS, "serve=8050"]) == 2
    of_port, of_extra = capfd.readouterr().err.splitlines()
    assert f"port {port} of 127.0.0.1: Address already in use; give another" in of_port
    assert "throughput-harness[serve]" in of_extra


def test_a_figure_has_a_row_per_rank_and_a_line_at_what_is_usable() -> None:
    spans = [[("idle", 0.0, 1.0), ("forward", 1.0, 3.0)], [("forward", 0.0, 2.0), ("idle", 2.0, 3.0)]]
    drawn = timeline_figure(spans)
    forward, idle = drawn["data"]
    assert [forward[name] for name in ("name", "y", "base", "x")] == ["Forward", [0, 1], [1, 0], [2, 2]]
    assert idle["name"].startswith("Idle")
    assert drawn["layout"]["xaxis"]["range"] == [0, 3]
    kinds = {name: [0.0, 0.0] for name in BYTES} | {name: [1e9, 2e9] for name in ("parameters", "outside")}
    memory = memory_figure(kinds, 3e9)
    assert [bar["name"] for bar in memory["data"]] == ["Parameters", "CUDA context, NCCL"]
    assert memory["layout"]["shapes"][0]["x0"] == 3
    assert memory["layout"]["xaxis"]["range"][1] > 4
