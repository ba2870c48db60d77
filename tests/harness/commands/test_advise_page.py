"""The page of `harness.advise serve=`, without a browser: its questions, its answers and its mistakes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.commands.advise import command
from harness.commands.advise.lines import layouts_of
from harness.commands.advise.page import server
from harness.commands.advise.page.asked import AskedPage, layout_values, values_of
from harness.commands.advise.page.figures import BYTES, memory_figure, timeline_figure
from harness.commands.advise.page.model import StepModel
from harness.commands.advise.question import question_of
from harness.config.validation import ConfigError

dash = pytest.importorskip("dash", reason="the extra `serve` brings it")
pytest.importorskip("transformers", reason="the extra `hf` brings it")

from harness.commands.advise.page import app as page_app  # noqa: E402

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
LAYOUT = "layout=tp:2,pp:4,virtual_stages:2,zero:1"


@pytest.fixture(scope="module")
def model() -> Iterator[StepModel]:
    with StepModel() as started:
        yield started


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    path = tmp_path / "llama-8b.json"
    path.write_text(json.dumps(LLAMA))
    return [f"model={path}", "gpus=16", "seq_len=8192", "global_batch_size=64", "link=200gbit,efa"]


@pytest.fixture
def page(words: list[str], tmp_path: Path) -> AskedPage:
    folder = tmp_path / "page"
    folder.mkdir()
    return AskedPage([*words, LAYOUT], folder)


@pytest.fixture
def values(page: AskedPage) -> dict[str, Any]:
    return values_of(page.first, page.first_model, page.models[page.first_model])


def texts(part: Any) -> str:
    """Return all text of dash's components."""
    if isinstance(part, list | tuple):
        return " ".join(map(texts, part))
    children = getattr(part, "children", None)
    return texts(children) if children is not None else str(part)


def test_the_controls_ask_what_the_command_asked(page: AskedPage, values: dict[str, Any]):
    asked = page.first
    assert dict(page.question(values).workload) == dict(asked.workload)
    assert values["model"] == "llama-8b"
    assert (values["link"], values["network"]) == (200, "efa")
    changed = page.question({**values, "num_hidden_layers": 48, "tp": 4})
    assert changed.workload["hf_config"] == {**LLAMA, "num_hidden_layers": 48}
    assert changed.workload["tp"] == 4


def test_without_a_model_it_begins_with_one_of_suite_layouts(tmp_path: Path):
    page = AskedPage([], tmp_path)
    assert page.first_model == "Llama-3.1-70B"
    assert "DeepSeek-V3" in page.models
    assert page.first.gpus == 128
    assert AskedPage(["gpus=64", "tokens_per_batch=2M"], tmp_path).first.workload["global_batch_size"] == 256


def test_the_headline_has_what_the_command_answers(
    page: AskedPage, values: dict[str, Any], model: StepModel, words: list[str], tmp_path: Path
):
    shown = page_app.answered(page, model, values, "step", "tp")
    assert shown["message"] == ""
    record = command.record_of(question_of([*words, LAYOUT, f"out={tmp_path / 'out'}"]))
    ((name, one),) = layouts_of(record).items()
    said = texts(shown["parts"]["headline"])
    assert name in said
    assert f"{one['model_flop_rate'] / 1e12:.0f}" in said
    assert f"{one['mfu']:.0%}" in said
    assert "fits" in said
    bars = shown["figures"]["timeline"]["data"]
    ends = [start + size for trace in bars for start, size in zip(trace["base"], trace["x"], strict=True)]
    assert max(ends) == pytest.approx(one["step_time"])
    sizes = [
        sum(each) for each in zip(*(trace["x"] for trace in shown["figures"]["memory"]["data"]), strict=True)
    ]
    usable_B = shown["figures"]["memory"]["layout"]["shapes"][0]["x0"] * 1e9
    # both also have the CUDA context and NCCL's buffers
    left_B = one["room_for_allocator"] - one["needed_memory"]
    assert usable_B - max(sizes) * 1e9 == pytest.approx(left_B)


def test_a_changed_control_changes_the_figures(page: AskedPage, values: dict[str, Any], model: StepModel):
    first = page_app.answered(page, model, values, "step", "tp")
    other = page_app.answered(page, model, {**values, "recompute": "full"}, "totals", "recompute")
    assert "Recompute" not in texts(first["parts"]["timeline-legend"])
    assert "Recompute" in texts(other["parts"]["timeline-legend"])
    assert first["figures"] != other["figures"]


def test_what_does_not_divide_is_the_commands_own_line_and_the_rest_stays(
    page: AskedPage, values: dict[str, Any], model: StepModel, words: list[str], tmp_path: Path
):
    shown = page_app.answered(page, model, {**values, "pp": 3}, "step", "pp")
    record = command.record_of(question_of([*words, "layout=tp:2,pp:3,zero:1", f"out={tmp_path / 'out'}"]))
    assert shown["message"] == record.reason
    assert set(shown["parts"].values()) == {dash.no_update}
    assert page_app.answered(page, model, values, "step", "pp")["message"] == ""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tp": None}, "tp: expected a whole number from 1 to"),
        ({"gpus": 10**9}, "gpus=1000000000: expected a whole number from 1 to 1,000,000"),
        ({"link": 0}, "link: expected a number above 0"),
        ({"link": 4e6}, "link=4e"),
        ({"device": "t4"}, "device=t4: seconds"),
        ({"program": "nanotron", "zero": 3}, "zero=3: nanotron has stages 0 to 1"),
        ({"num_key_value_heads": 7}, "num_key_value_heads"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_on_the_page(
    page: AskedPage, values: dict[str, Any], model: StepModel, changed: dict[str, Any], message: str
):
    shown = page_app.answered(page, model, {**values, **changed}, "step", "")
    assert message in shown["message"]
    assert "\n" not in shown["message"]
    assert len(shown["message"]) < 300


def test_another_model_brings_its_sizes(page: AskedPage, values: dict[str, Any], model: StepModel):
    shown = page_app.answered(page, model, {**values, "model": "Llama-3.1-70B", "pp": 8}, "step", "model")
    assert shown["values"]["num_hidden_layers"] == 80
    assert "70.6 B" in texts(shown["parts"]["headline"])


def test_the_button_finds_the_layout_that_the_command_has_first(
    page: AskedPage, values: dict[str, Any], model: StepModel, words: list[str]
):
    shown = page_app.answered(page, model, {**values, "recompute": "full"}, "step", "fastest")
    first = layout_values(model.ask(question_of(words).workload).record.notes)
    now = {name: values[name] if new is dash.no_update else new for name, new in shown["values"].items()}
    assert {name: now[name] for name in first} == first
    assert now["recompute"] == "none"


def test_a_lost_process_is_started_again(page: AskedPage, values: dict[str, Any]):
    with StepModel() as own:
        own._process.kill()
        own._process.wait()
        assert own.ask(page.question(values).workload).record.measurements


def test_the_page_is_served_with_its_first_answer_to_this_machine_alone(
    page: AskedPage, words: list[str], model: StepModel, tmp_path: Path
):
    served = page_app.app_of([*words, LAYOUT], model, tmp_path)
    client = served.server.test_client()
    layout = client.get("/_dash-layout").get_data(as_text=True)
    assert "value-step" in layout
    assert 'lang="en"' in client.get("/").get_data(as_text=True)
    guarded = server.loopback_only(served.server)
    answered: list[str] = []
    for host in ("127.0.0.1:8050", "localhost:8050", "elsewhere.example:8050", ""):
        environ = {"HTTP_HOST": host, "REQUEST_METHOD": "GET", "PATH_INFO": "/", "SERVER_NAME": "x",
                   "SERVER_PORT": "1", "wsgi.url_scheme": "http"}  # fmt: skip
        guarded(environ, lambda status, *_: answered.append(status))
    assert [one[:3] for one in answered] == ["200", "200", "403", "403"]


def test_what_serves_never_imports_torch():
    code = "import sys, harness.commands.advise.page.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["serve=yes"], "serve=yes: expected true or a port, as serve=8050"),
        (["serve=70000"], "serve=70000: expected true or a port"),
        (["serve=0", "mine=4s"], "mine=4s: the page of serve= does not show it"),
        (["serve=0", "colour=red"], "colour: no such name"),
        (["serve=0", "device=t4"], "device=t4: seconds"),
    ],
    ids=str,
)
def test_a_mistake_in_the_command_is_one_line_and_exit_status_2(
    words: list[str], more: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert command.main([*words, LAYOUT, *more]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_without_the_extra_one_line_names_it(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(server, "find_spec", lambda _: None)
    assert command.main([*words, "serve=8050"]) == 2
    said = capsys.readouterr().err
    assert "throughput-harness[serve]" in said
    assert said.count("\n") == 1


def test_a_port_that_is_taken_is_one_line(words: list[str], capfd: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.main([*words, LAYOUT, f"serve={port}"]) == 2
    assert f"port {port} of 127.0.0.1: Address already in use; give another" in capfd.readouterr().err


def test_a_figure_has_a_row_per_rank_and_a_line_at_what_is_usable():
    spans = [[("idle", 0.0, 1.0), ("forward", 1.0, 3.0)], [("forward", 0.0, 2.0), ("idle", 2.0, 3.0)]]
    drawn = timeline_figure(spans)
    forward, idle = drawn["data"]
    assert (forward["name"], forward["y"], forward["base"], forward["x"]) == (
        "Forward",
        [0, 1],
        [1, 0],
        [2, 2],
    )
    assert idle["name"].startswith("Idle")
    assert drawn["layout"]["xaxis"]["range"] == [0, 3]
    kinds = {name: [0.0, 0.0] for name in BYTES} | {name: [1e9, 2e9] for name in ("parameters", "outside")}
    memory = memory_figure(kinds, 3e9)
    assert [trace["name"] for trace in memory["data"]] == ["Parameters", "CUDA context, NCCL"]
    assert memory["layout"]["shapes"][0]["x0"] == 3
    assert memory["layout"]["xaxis"]["range"][1] > 4


def test_a_config_error_of_the_first_question_is_raised(tmp_path: Path, words: list[str], model: StepModel):
    with pytest.raises(ConfigError, match="gpus: missing"):
        page_app.app_of([word for word in words if "gpus" not in word], model, tmp_path)
