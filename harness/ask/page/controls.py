"""The controls of the page: model, cluster, batch and layout, by the names that the command has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dash import dcc, html

from harness.ask.lines import PROGRAMS
from harness.ask.written import RECOMPUTES
from harness.config.user_inputs.hf_config import SIZES

WAIT_S = 0.4
"""How long a number has to stay as it was typed before the model answers."""

PRECISIONS = ("bf16", "fp8", "mxfp8", "nvfp4")

Options = Sequence[tuple[Any, str]]


class FormControl(NamedTuple):
    """One control; without options it is a number."""

    name: str
    label: str
    options: Options = ()
    hint: str = ""


def controls(models: Sequence[str], devices: Sequence[str]) -> Mapping[str, Sequence[FormControl]]:
    """Return the controls by the heading that they are under."""
    return {
        "Model": [FormControl("model", "Model", [(name, name) for name in models])],
        "Cluster": [
            FormControl("gpus", "GPUs"),
            FormControl("gpus_per_node", "GPUs per node"),
            FormControl("device", "Device", [(name, name.replace("_", " ").upper()) for name in devices]),
            FormControl("link", "Network, Gbit/s per GPU"),
            FormControl("network", "Fabric", list(NETWORK_TITLES.items())),
        ],
        "Batch": [
            FormControl("seq_len", "Sequence length", hint="tokens"),
            FormControl("global_batch_size", "Global batch size", hint="sequences"),
            FormControl("micro_batch_size", "Micro-batch size", hint="sequences"),
            FormControl("precision", "Precision", [(name, name.upper()) for name in PRECISIONS]),
        ],
        "Layout": [
            FormControl("tp", "Tensor parallel (tp)"),
            FormControl("pp", "Pipeline parallel (pp)"),
            FormControl("cp", "Context parallel (cp)"),
            FormControl("virtual_stages", "Stages per rank", hint="more than 1: interleaved 1F1B"),
            FormControl("ep", "Expert parallel (ep)"),
            FormControl("etp", "Tensor parallel of experts"),
            FormControl("zero", "ZeRO stage", [(stage, f"ZeRO-{stage}") for stage in range(4)]),
            FormControl("shard_size", "Shard size", hint="ranks; empty: all"),
            FormControl("recompute", "Recompute", [(name, name) for name in RECOMPUTES]),
            FormControl("sequence_parallel", "Sequence parallel", [(True, "with tp"), (False, "off")]),
            FormControl("program", "Program", list(PROGRAMS.items())),
        ],
    }


WIDE = ("model", "device", "program")
"""Controls as wide as the form."""

NETWORK_TITLES = {"infiniband": "InfiniBand", "efa": "AWS EFA"}

SIZE_LABELS = {
    "num_hidden_layers": "Layers",
    "hidden_size": "Hidden size",
    "num_attention_heads": "Attention heads",
    "num_key_value_heads": "Key-value heads",
    "intermediate_size": "Intermediate size",
    "vocab_size": "Vocabulary",
}


def form(models: Sequence[str], devices: Sequence[str], values: Mapping[str, Any]) -> html.Form:
    """Return all controls with their values."""
    parts: list[Any] = []
    for heading, listed in controls(models, devices).items():
        shown = [field(one, values[one.name]) for one in listed]
        parts.append(html.Fieldset([html.Legend(heading), *shown, *sizes(heading, values)]))
    button = html.Button("Find the fastest layout", id="fastest", type="button", n_clicks=0)
    return html.Form([*parts, button], id="form")


def sizes(heading: str, values: Mapping[str, Any]) -> Iterator[html.Details]:
    """Yield the model's sizes, folded, under the heading of the model."""
    if heading == "Model":
        fields = [field(FormControl(name, SIZE_LABELS[name]), values[name]) for name in SIZES]
        yield html.Details([html.Summary("Change its sizes"), html.Div(fields, className="sizes")])


def field(control: FormControl, value: Any) -> html.Div:
    """Return one control with its label."""
    part: Any
    if control.options:
        options = [{"value": chosen, "label": label} for chosen, label in control.options]
        part = dcc.Dropdown(
            id=control.name, options=options, value=value, clearable=False, searchable=len(options) > 8
        )
    else:
        part = dcc.Input(id=control.name, type="number", value=value, min=0, debounce=WAIT_S)
    hint = [html.Small(control.hint)] if control.hint else []
    wide = " wide" if control.name in WIDE else ""
    label = html.Label([control.label, *hint], htmlFor=control.name)
    return html.Div([label, part], className=f"field{wide}")
