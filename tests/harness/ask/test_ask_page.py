"""The page of `harness.advise serve=`: its questions, its answers and its mistakes; last in a browser."""

import html
import json
import re
import socket
import subprocess
import sys
import threading

import pytest
from browser import BROWSER, FLAGS, needs_a_browser
from msgspec.structs import asdict
from own_texts import MEGATRON

from harness.ask import advise
from harness.ask.engines import answer_of
from harness.ask.lines import chance
from harness.ask.page import server
from harness.ask.page.asked import AskedPage, first_question, layout_values
from harness.config.code_fingerprint import ROOT
from harness.units import human

dash = pytest.importorskip("dash", reason="the extra `serve` brings it")

from harness.ask.page import app as page_app  # noqa: E402

MODEL = f"model={ROOT}/tests/data/configs/llama-3.1-8b.json"
WORDS = f"{MODEL} gpus=16 seq_len=8192 global_batch_size=64 link=200gbit,efa".split()
LAYOUT = "layout=tp:2,pp:4,virtual_stages:2,zero:1"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return AskedPage([*WORDS, LAYOUT], tmp_path_factory.mktemp("page"))


def shown(page, view="step", trigger="tp", **changed):
    return page_app.answered(page, {**page.first_values(), **changed}, view, trigger)


def said(part):
    """Return all text of dash's components."""
    if isinstance(part, list | tuple):
        return " ".join(map(said, part))
    children = getattr(part, "children", None)
    return said(children) if children is not None else str(part)


def asked(question):
    """Return what is asked, without how it was said."""
    how = ("origins", "model_source", "model_name", "keys", "format", "framework")
    return {name: value for name, value in asdict(question).items() if name not in how}


def test_the_controls_ask_what_the_command_or_the_file_asked(page, tmp_path):
    values = page.first_values()
    assert asked(first_question(page.words_of(values))) == asked(page.first)
    assert (values["model"], values["link"], values["network"]) == ("llama-3.1-8b", 200, "efa")
    changed = first_question(page.words_of({**values, "num_hidden_layers": 48, "tp": 4}))
    assert changed.config == {**page.first.config, "num_hidden_layers": 48}
    assert (changed.tp, changed.pp) == (4, 4)
    (tmp_path / "run.sh").write_text(MEGATRON)
    of_file = AskedPage([f"config={tmp_path / 'run.sh'}"], tmp_path)
    again = asked(first_question(of_file.words_of(of_file.first_values())))
    for name in ("config", "devices", "tp", "pp", "virtual_stages", "zero", "global_batch_size", "recompute"):
        assert (name, again[name]) == (name, asked(of_file.first)[name])


def test_without_a_model_it_begins_with_one_of_suite_layouts(tmp_path):
    page = AskedPage([], tmp_path)
    assert (page.first_model, page.first.devices) == ("Llama-3.1-70B", 128)
    first = AskedPage(["gpus=64", "tokens_per_batch=2M"], tmp_path).first
    assert (first.devices, first.global_batch_size) == (64, 256)


def test_the_page_has_what_the_command_answers_and_controls_change_it(page):
    parts = shown(page)["parts"]
    (one,) = answer_of(first_question([*WORDS, LAYOUT]), seconds=True).layouts
    rates = (f"{one.model_FLOP_per_s / 1e12:.0f}", f"{one.mfu:.0%}", human(one.as_run_s.likely, "s"))
    for text in (one.title, *rates, chance(one), "fits"):
        assert text in said(parts["headline"])
    mine = shown(page, mine=1.5 * one.step_s.likely)["parts"]
    assert f"mine={1.5 * one.step_s.likely:g}s" in said(mine["command"])
    bars = parts["timeline"]["data"]
    ends = [start + size for bar in bars for start, size in zip(bar["base"], bar["x"], strict=True)]
    assert max(ends) == pytest.approx(one.step_s.likely)
    memory = parts["memory"]
    most_B = max(map(sum, zip(*(bar["x"] for bar in memory["data"]), strict=True))) * 1e9
    left_B = memory["layout"]["shapes"][0]["x0"] * 1e9 - most_B  # both have the context and NCCL's buffers
    assert left_B == pytest.approx(one.room_B - one.needed_B)
    larger = shown(page, trigger="model", model="Llama-3.1-70B", pp=8)
    assert larger["values"]["num_hidden_layers"] == 80
    assert "70.6 B" in said(larger["parts"]["headline"])


def test_the_button_finds_the_layout_that_the_command_has_first(page):
    new = shown(page, trigger="fastest", recompute="full")["values"]
    first, before = layout_values(answer_of(first_question(WORDS), seconds=True)), page.first_values()
    now = {name: before[name] if value is dash.no_update else value for name, value in new.items()}
    assert {name: now[name] for name in first} == first
    assert now["recompute"] == "none"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pp": 3}, "tp × pp × cp = 2 × 3 × 1 = 6 does not divide the 16 GPUs"),
        ({"tp": None}, "tp: expected a whole number"),
        ({"link": 0}, "link: expected a number above 0"),
        ({"device": "gpu_80gb"}, "device=gpu_80gb: seconds"),
        ({"num_key_value_heads": 7}, "num_key_value_heads"),
    ],
)
def test_a_mistake_is_one_line_and_the_rest_stays(page, changed, message):
    refused = shown(page, **changed)
    assert message in refused["message"]
    assert len(refused["message"].splitlines()) == 1
    assert set(refused["parts"].values()) == {dash.no_update}
    assert shown(page)["message"] == ""


def test_it_is_served_with_its_first_answer_to_this_machine_alone_without_torch(tmp_path):
    served = page_app.app_of([*WORDS, LAYOUT], tmp_path).server
    client = served.test_client()
    assert "value-step" in client.get("/_dash-layout").get_data(as_text=True)
    served.wsgi_app = server.loopback_only(served.wsgi_app)
    hosts = {"127.0.0.1:8050": 200, "localhost:8050": 200, "elsewhere.example:8050": 403}
    assert {host: client.get("/", headers={"Host": host}).status_code for host in hosts} == hosts
    with server.listener(0, "serve=0") as opened:
        assert opened.getsockname()[0] == "127.0.0.1"
    code = "import sys, harness.ask.page.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


def test_a_page_that_cannot_be_served_is_one_line(monkeypatch, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert advise.main([*WORDS, LAYOUT, f"serve={port}"]) == 2
    monkeypatch.setattr(server, "find_spec", lambda _: None)
    assert advise.main([*WORDS, "serve=8050"]) == 2
    of_port, of_extra = capfd.readouterr().err.splitlines()
    assert f"port {port} of 127.0.0.1" in of_port
    assert "throughput-harness[serve]" in of_extra


VISITOR = (ROOT / "tests/support/records/page_visitor.html").read_bytes()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return what a visitor sees who changes tp to 4, then to 7, in a wide and in a narrow window."""
    folder, model = tmp_path_factory.mktemp("page"), "model=tests/data/configs/llama-3.1-8b.json"
    words = f"{model} gpus=64 seq_len=8192 global_batch_size=128 layout=tp:2,pp:4"
    with server.listener(0, "serve=0") as opened:
        served = server.server_of(words.split(), folder, opened)
        whole = served.app

        def with_visitor(environ, start_response):
            if environ["PATH_INFO"] != "/visitor":
                return whole(environ, start_response)
            start_response("200 OK", [("Content-Type", "text/html; charset=utf-8")])
            return [VISITOR]

        served.app = with_visitor
        threading.Thread(target=served.serve_forever, daemon=True).start()
        url = f"http://{server.HOST}:{served.port}/visitor"
        command = [str(BROWSER), *FLAGS, "--disable-quic", f"--user-data-dir={folder / 'profile'}", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        served.shutdown()
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


@needs_a_browser
def test_a_changed_input_changes_the_figures_and_what_does_not_divide_is_one_line(seen):
    first, changed, refused = seen["first"], seen["changed"], seen["refused"]
    for part in ("step", "memory", "timeline"):
        assert first[part] != changed[part]
    assert "tp 4" in changed["layout"]
    assert first["bars"] > 100
    assert "tp × pp × cp = 7 × 4 × 1 = 28 does not divide the 64 GPUs" in refused["message"]
    assert refused["step"] == changed["step"]
    assert [one["page"] <= one["window"] for one in seen["widths"]] == [True, True]
