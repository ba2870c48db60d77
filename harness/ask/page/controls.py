"""The controls of the page: model, cluster, batch and layout, by the names that the command has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from dash import dcc, html

from harness.ask.lines import PROGRAMS
from harness.ask.written import RECOMPUTES

WAIT_S = 0.4
"""How long a number has to stay as it was typed before the model answers."""

WIDE = ("model", "device", "program")
"""Controls as wide as the form."""

Options = Sequence[tuple[Any, str]]


class FormControl(NamedTuple):
    """One control; without options it is a number."""

    name: str
    label: str
    hint: str = ""
    options: Options = ()


SIZES = (
    FormControl("num_hidden_layers", "Layers"),
    FormControl("hidden_size", "Hidden size"),
    FormControl("num_attention_heads", "Attention heads"),
    FormControl("num_key_value_heads", "Key-value heads"),
    FormControl("intermediate_size", "Intermediate size"),
    FormControl("vocab_size", "Vocabulary"),
)
"""Of the model, folded under its heading."""


def controls(models: Sequence[str]) -> Mapping[str, Sequence[FormControl]]:
    """Return the controls by the heading that they are under."""
    devices = import_module("suites.training.of_question").COMPARED
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
    }


def form(models: Sequence[str], values: Mapping[str, Any]) -> html.Form:
    """Return all controls with their values."""
    parts: list[Any] = []
    for heading, listed in controls(models).items():
        shown = [html.Legend(heading), *(field(one, values[one.name]) for one in listed)]
        if heading == "Model":
            sizes = html.Div([field(one, values[one.name]) for one in SIZES], className="sizes")
            shown.append(html.Details([html.Summary("Change its sizes"), sizes]))
        parts.append(html.Fieldset(shown))
    button = html.Button("Find the fastest layout", id="fastest", type="button", n_clicks=0)
    return html.Form([*parts, button], id="form")


def field(control: FormControl, value: Any) -> html.Div:
    """Return one control with its label."""
    name, label, hint, choices = control
    options = [{"value": chosen, "label": text} for chosen, text in choices]
    part = (
        dcc.Dropdown(id=name, options=options, value=value, clearable=False, searchable=len(options) > 8)
        if options
        else dcc.Input(id=name, type="number", value=value, min=0, debounce=WAIT_S)
    )
    labelled = html.Label([label, *([html.Small(hint)] if hint else [])], htmlFor=name)
    return html.Div([labelled, part], className=f"field{' wide' if name in WIDE else ''}")
