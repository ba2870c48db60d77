"""The page as an application of dash: its controls, its layout, and what a changed control changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from dash import Dash, Input, Output, ctx, dcc, html, no_update

from harness.ask.engines import answer_to
from harness.ask.lines import PROGRAMS
from harness.ask.mine import own_step
from harness.ask.page import view
from harness.ask.page.asked import CONTROLS, AskedPage, Values, first_question, layout_values
from harness.ask.words import ADVISE, words_of
from harness.ask.written import RECOMPUTES
from harness.commands.entry import shortened
from harness.config.validation import ConfigError

VIEWS = {"step": "Full step", "start": "Start", "end": "End", "totals": "Totals"}

PARTS = {
    **dict.fromkeys(("headline", "timeline-legend", "timeline-note", "memory-legend"), "children"),
    **dict.fromkeys(("memory-note", "tables", "command"), "children"),
    **dict.fromkeys(("timeline", "memory"), "figure"),
}
"""Parts of the page that an answer fills, and what of each."""

WAIT_S = 0.4
"""How long a number has to stay as it was typed before the model answers."""

WIDE = ("model", "device", "program", "mine")
"""Controls as wide as the form."""

Options = Sequence[tuple[Any, str]]


class FormControl(NamedTuple):
    """One control; without options it is a number."""

    name: str
    label: str
    hint: str = ""
    options: Options = ()


SIZES = {
    **{"num_hidden_layers": "Layers", "hidden_size": "Hidden size", "num_attention_heads": "Attention heads"},
    **{"num_key_value_heads": "Key-value heads", "intermediate_size": "Intermediate size"},
    **{"vocab_size": "Vocabulary"},
}
"""Of the model, folded under its heading."""


def app_of(words: Sequence[str], folder: Path) -> Dash:
    """Return the page that begins with the question of `words`; raises ConfigError where it is refused."""
    page = AskedPage(words, folder)
    values = page.first_values()
    found = layout_values(answer_to(page.first))
    if page.first.search:
        values |= found
    app = Dash(__name__, title="Predicted training step", update_title="", add_log_handler=False)
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    app.layout = lambda: whole(page, values)

    def changed(values: dict[str, Any], shown: str, clicks: int) -> dict[str, Any]:
        """Answer for what the controls have now."""
        return answered(page, values, shown, str(ctx.triggered_id))

    inputs = {"shown": Input("view", "value"), "clicks": Input("fastest", "n_clicks")}
    app.callback(
        output={
            "message": Output("message", "children"),
            "parts": {name: Output(name, of) for name, of in PARTS.items()},
            "values": {name: Output(name, "value") for name in CONTROLS},
        },
        inputs={"values": {name: Input(name, "value") for name in CONTROLS}, **inputs},
        prevent_initial_call=True,
    )(changed)
    return app


def whole(page: AskedPage, values: dict[str, Any]) -> html.Div:
    """Return the page with its first answer."""
    first = answered(page, values, "step", "")
    parts = first["parts"]
    if first["message"]:
        parts = {name: {} if of == "figure" else None for name, of in PARTS.items()}
    options = [{"value": key, "label": label} for key, label in VIEWS.items()]
    order = dcc.RadioItems(id="view", options=options, value="step", inline=True)
    head = html.Div([html.H2("Timeline of one step"), order], className="head")
    main = html.Main([
        html.P(first["message"], id="message", role="alert"),
        html.Section(parts["headline"], id="headline", **{"aria-live": "polite"}),
        section("timeline", head, parts),
        section("memory", html.H2("Memory per GPU"), parts),
        html.Section(parts["tables"], id="tables"),
        html.Section(parts["command"], id="command"),
    ])  # fmt: skip
    side = html.Aside(form(list(page.models), values))
    return html.Div(
        [html.Header(html.H1("Predicted training step")), html.Div([side, main], className="columns")]
    )


def section(name: str, head: Any, parts: Mapping[str, Any]) -> html.Section:
    """Return a figure with its heading, its legend and a note."""
    return html.Section([
        head,
        html.Div(parts[f"{name}-legend"], id=f"{name}-legend", className="legend"),
        dcc.Graph(id=name, figure=parts[name], config={"displayModeBar": False, "responsive": True}),
        html.P(parts[f"{name}-note"], id=f"{name}-note", className="soft"),
    ])  # fmt: skip


def answered(page: AskedPage, values: Values, shown: str, trigger: str) -> dict[str, Any]:
    """Return what the page shows for the controls; where it is refused, one line, and the rest stays.

    `trigger`: the control that changed. Another model brings its own sizes; the button finds a layout.
    """
    new, message = dict(values), ""
    try:
        if trigger == "model":
            new |= page.models[values["model"]].sizes()
        if trigger == "fastest":
            found = layout_values(answer_to(first_question(page.words_of(new, search=True))))
            if not found:
                raise ConfigError("no layout fits; more GPUs, a shorter sequence or a smaller model may")
            new |= found
        words, known = page.words_of(new), page.models[new["model"]]
        question = first_question(words)
        parts = view.parts_of(question, shown, own_step(words_of(words, ADVISE), question))
        own = known.given and words[0] == f"model={known.path}"
        parts["command"] = view.command(words, None if own else question.config)
    except ConfigError as error:
        parts, message = dict.fromkeys(PARTS, no_update), shortened(str(error))
    same = {name: no_update if new[name] == values[name] else new[name] for name in CONTROLS}
    return {"message": message, "parts": parts, "values": same}


def controls(models: Sequence[str]) -> Mapping[str, Sequence[FormControl]]:
    """Return the controls by the heading that they are under."""
    compared = import_module("suites.training.step_time.prediction").COMPARED_CHIPS
    known = import_module("suites.training.step_time.gpu").device_names()
    devices = [name for name in known if name.split("_")[0] in compared]
    precisions = ("bf16", "fp8", "mxfp8", "nvfp4")
    return {
        "Model": [FormControl("model", "Model", "", [(name, name) for name in models])],
        "Cluster": [
            FormControl("gpus", "GPUs"),
            FormControl("gpus_per_node", "GPUs per node"),
            FormControl("device", "Device", "", [(name, name.replace("_", " ").upper()) for name in devices]),
            FormControl("link", "Network, Gbit/s per GPU"),
            FormControl("network", "Fabric", "", [("infiniband", "InfiniBand"), ("efa", "AWS EFA")]),
        ],
        "Batch": [
            FormControl("seq_len", "Sequence length", "tokens"),
            FormControl("global_batch_size", "Global batch size", "sequences"),
            FormControl("micro_batch_size", "Micro-batch size", "sequences"),
            FormControl("precision", "Precision", "", [(name, name.upper()) for name in precisions]),
        ],
        "Layout": [
            FormControl("tp", "Tensor parallel (tp)"),
            FormControl("pp", "Pipeline parallel (pp)"),
            FormControl("cp", "Context parallel (cp)"),
            FormControl("virtual_stages", "Stages per rank", "more than 1: interleaved 1F1B"),
            FormControl("ep", "Expert parallel (ep)"),
            FormControl("etp", "Tensor parallel of experts"),
            FormControl("zero", "ZeRO stage", "", [(stage, f"ZeRO-{stage}") for stage in range(4)]),
            FormControl("shard_size", "Shard size", "ranks; empty: all"),
            FormControl("recompute", "Recompute", "", [(name, name) for name in RECOMPUTES]),
            FormControl("sequence_parallel", "Sequence parallel", "", [(True, "with tp"), (False, "off")]),
            FormControl("program", "Program", "", list(PROGRAMS.items())),
        ],
        "Your own step": [FormControl("mine", "Seconds per step", "empty: none; else what explains it")],
    }


def form(models: Sequence[str], values: Mapping[str, Any]) -> html.Form:
    """Return all controls with their values."""
    parts: list[Any] = []
    for heading, listed in controls(models).items():
        shown = [html.Legend(heading), *(field(one, values[one.name]) for one in listed)]
        if heading == "Model":
            named = [field(FormControl(name, label), values[name]) for name, label in SIZES.items()]
            sizes = html.Div(named, className="sizes")
            shown.append(html.Details([html.Summary("Change its sizes"), sizes]))
        parts.append(html.Fieldset(shown))
    button = html.Button("Find the fastest layout", id="fastest", type="button", n_clicks=0)
    return html.Form([*parts, button], id="form")


def field(control: FormControl, value: Any) -> html.Div:
    """Return one control with its label."""
    name, label, hint, choices = control
    options = [{"value": chosen, "label": text} for chosen, text in choices]
    part: Any = dcc.Input(id=name, type="number", value=value, min=0, debounce=WAIT_S)
    if options:
        searchable = len(options) > 8
        part = dcc.Dropdown(id=name, options=options, value=value, clearable=False, searchable=searchable)
    labelled = html.Label([label, *([html.Small(hint)] if hint else [])], htmlFor=name)
    return html.Div([labelled, part], className=f"field{' wide' if name in WIDE else ''}")
