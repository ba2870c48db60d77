"""The page as an application of dash: its layout, and what a changed control changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from harness.ask.page import view
from harness.ask.page.asked import CONTROLS, AskedPage, Values, first_question, layout_values, values_of
from harness.ask.page.controls import form
from harness.ask.page.figures import memory_figure, timeline_figure
from harness.ask.page.step import answer_to, devices, page_answer
from harness.commands.entry import shortened
from harness.config.validation import ConfigError

VIEWS = {"step": "Full step", "start": "Start", "end": "End", "totals": "Totals"}

CHILDREN = (
    "headline",
    "timeline-legend",
    "timeline-note",
    "memory-legend",
    "memory-note",
    "tables",
    "command",
)
FIGURES = ("timeline", "memory")
"""Parts of the page that an answer fills."""

GRAPH = {"displayModeBar": False, "responsive": True}


def app_of(words: Sequence[str], folder: Path) -> Dash:
    """Return the page that begins with the question of `words`; raises ConfigError where it is refused."""
    page = AskedPage(words, folder)
    values = first_values(page)
    app = Dash(__name__, title="Predicted training step", update_title="", add_log_handler=False)
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    app.layout = lambda: whole(page, values)

    def changed(values: dict[str, Any], shown: str, clicks: int, message: str) -> dict[str, Any]:
        """Answer for what the controls have now."""
        return answered(page, values, shown, str(ctx.triggered_id))

    app.callback(
        output={
            "message": Output("message", "children"),
            "parts": {name: Output(name, "children") for name in CHILDREN},
            "figures": {name: Output(name, "figure") for name in FIGURES},
            "values": {name: Output(name, "value") for name in CONTROLS},
        },
        inputs={
            "values": {name: Input(name, "value") for name in CONTROLS},
            "shown": Input("view", "value"),
            "clicks": Input("fastest", "n_clicks"),
            "message": State("message", "children"),
        },
        prevent_initial_call=True,
    )(changed)
    return app


def first_values(page: AskedPage) -> dict[str, Any]:
    """Return the controls of the first question: its layout, or the fastest where it has none.

    Raises ConfigError where the model refuses it.
    """
    name = page.first_model
    values = values_of(page.first, name, page.models[name])
    found = layout_values(answer_to(page.first))
    if page.first.search:
        values |= found
    return values


def whole(page: AskedPage, values: dict[str, Any]) -> html.Div:
    """Return the page with its first answer."""
    first = answered(page, values, "step", "")
    parts, figures = first["parts"], first["figures"]
    kept = {name: None if parts[name] is no_update else parts[name] for name in CHILDREN}
    drawn = {name: {} if figures[name] is no_update else figures[name] for name in FIGURES}
    graphs = {name: dcc.Graph(id=name, figure=drawn[name], config=GRAPH) for name in FIGURES}
    order = dcc.RadioItems(
        id="view",
        options=[{"value": key, "label": label} for key, label in VIEWS.items()],
        value="step",
        inline=True,
    )
    main = html.Main([
        html.P(first["message"], id="message", role="alert"),
        html.Section(kept["headline"], id="headline", **{"aria-live": "polite"}),
        html.Section([
            html.Div([html.H2("Timeline of one step"), order], className="head"),
            html.Div(kept["timeline-legend"], id="timeline-legend", className="legend"),
            graphs["timeline"],
            html.P(kept["timeline-note"], id="timeline-note", className="soft"),
        ]),
        html.Section([
            html.H2("Memory per GPU"),
            html.Div(kept["memory-legend"], id="memory-legend", className="legend"),
            graphs["memory"],
            html.P(kept["memory-note"], id="memory-note", className="soft"),
        ]),
        html.Section(kept["tables"], id="tables"),
        html.Section(kept["command"], id="command"),
    ])  # fmt: skip
    side = html.Aside(form(list(page.models), devices(), values))
    return html.Div(
        [html.Header(html.H1("Predicted training step")), html.Div([side, main], className="columns")]
    )


def answered(page: AskedPage, values: Values, shown: str, trigger: str) -> dict[str, Any]:
    """Return what the page shows for the controls; where it is refused, one line, and the rest stays.

    `trigger`: the control that changed. Another model brings its own sizes; the button finds a layout.
    """
    new = dict(values)
    try:
        if trigger == "model":
            new |= page.models[values["model"]].sizes()
        if trigger == "fastest":
            asked = page.question(new, search=True)
            found = layout_values(answer_to(asked))
            if not found:
                raise ConfigError("no layout fits; more GPUs, a shorter sequence or a smaller model may")
            new |= found
        parts, figures = parts_of(page, new, shown)
    except ConfigError as error:
        parts, figures = dict.fromkeys(CHILDREN, no_update), dict.fromkeys(FIGURES, no_update)
        message = shortened(str(error))
    else:
        message = ""
    same = {name: no_update if new[name] == values[name] else new[name] for name in CONTROLS}
    return {"message": message, "parts": parts, "figures": figures, "values": same}


def parts_of(page: AskedPage, values: Values, shown: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what an answer fills; raises ConfigError where the question is refused."""
    words = page.words_of(values)
    question = first_question(words)
    answer = page_answer(question, shown)
    known = page.models[values["model"]]
    own = known.given and page.path_of(values) == known.path
    parts = {
        "headline": view.headline(answer, question),
        "timeline-legend": view.time_legend(answer),
        "timeline-note": view.time_note(answer, shown),
        "memory-legend": view.memory_legend(answer),
        "memory-note": view.memory_note(answer),
        "tables": view.tables(answer),
        "command": view.command(words, None if own else question.config),
    }
    figures = {
        "timeline": timeline_figure(answer.timeline["ranks"]),
        "memory": memory_figure(answer.memory["kinds"], answer.memory["usable_B"]),
    }
    return parts, figures
