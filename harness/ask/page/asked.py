"""What the page asks: the values of its controls to the words of `harness.advise`, and back."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.answer import Answer
from harness.ask.words import ADVISE, display_name, step_question, words_of
from harness.ask.written import RECOMPUTES
from harness.config.user_inputs.hf_config import SIZES
from harness.config.validation import ConfigError
from harness.question import Question
from harness.records import digest

Values = Mapping[str, Any]
"""By a control's name: a number, a text, or None where it is empty."""

LAYOUT = ("tp", "pp", "cp", "ep", "etp", "virtual_stages", "zero", "shard_size", "sequence_parallel")
"""Controls that are parts of `layout=`."""

FIELDS = (
    "gpus",
    "gpus_per_node",
    "device",
    "seq_len",
    "global_batch_size",
    "micro_batch_size",
    "recompute",
    "program",
    "precision",
)
"""Controls that are words of the command by the same name."""

CONTROLS = ("model", *SIZES, *FIELDS, "link", "network", *LAYOUT)

MOST: Mapping[str, int] = {
    **dict.fromkeys(SIZES, 10_000_000),
    **dict.fromkeys(LAYOUT, 100_000),
    **dict.fromkeys(("gpus", "gpus_per_node"), 1_000_000),
    **dict.fromkeys(("seq_len", "micro_batch_size", "global_batch_size"), 100_000_000),
}
"""The largest numbers that the page takes; larger ones would only keep it busy."""

OPTIONAL = ("global_batch_size", "etp", "shard_size")
"""Controls that may be empty."""

DEFAULT_WORKLOAD = "llama_70b_128"
"""Of suite layouts: what the page begins with where no model is given."""


class KnownModel(NamedTuple):
    """A model that the page offers."""

    path: Path  # of its config.json
    config: Mapping[str, Any]
    given: bool  # by the user; else it is one of suite layouts

    def sizes(self) -> dict[str, int | None]:
        """Return the sizes that the config has, by the names of the controls; None for others."""
        return {
            name: next((self.config[key] for key in keys if key in self.config), None)
            for name, keys in SIZES.items()
        }


def suite_models(folder: Path) -> dict[str, KnownModel]:
    """Return the models of suite layouts by name, each written as a config.json in the folder."""
    from harness.config.run import load

    found = {}
    for fields in load(["suite=layouts"])[0].workloads.values():
        name = model_of(fields)
        path = folder / f"{name}.json"
        path.write_text(json.dumps(fields["hf_config"]))
        found[name] = KnownModel(path, fields["hf_config"], False)
    return found


def default_words(folder: Path, given: Collection[str]) -> list[str]:
    """Return the words of the question that the page begins with, without those of the keys given."""
    from harness.config.run import load

    fields = load(["suite=layouts"])[0].workloads[DEFAULT_WORKLOAD]
    own = {
        "model": folder / f"{model_of(fields)}.json",
        "devices": fields["gpus"],
        "seq_len": fields["seq_len"],
    }
    if "tokens_per_batch" not in given:
        own["global_batch_size"] = fields["global_batch_size"]
    return [f"{key}={text}" for key, text in own.items() if key not in given]


def model_of(fields: Mapping[str, Any]) -> str:
    """Return the name of a workload's model, as Llama-3.1-70B."""
    return str(fields["source"]).partition(",")[0].partition("/")[2]


class AskedPage:
    """The models that can be chosen, and the words that no control has."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        """Raise ConfigError where the words are refused.

        `words`: those of the command without `serve`; `folder`: for configs that the page writes.
        """
        self.folder = folder
        self.models = suite_models(folder)
        given = words_of(words, ADVISE).values
        named = "model" in given or "config" in given
        self.first = first_question(words if named else [*default_words(folder, given), *words])
        if named:
            self.first_model = Path(self.first.model_name).name.removesuffix(".json") or "model"
            path = Path(given.get("model", ""))
            if not path.is_file():
                path = folder / f"{self.first_model}.json"
                path.write_text(json.dumps(self.first.config))
            own = KnownModel(path, self.first.config or {}, "model" in given)
            others = {name: one for name, one in self.models.items() if name != self.first_model}
            self.models = {self.first_model: own, **others}
        else:
            self.first_model = display_name(self.first.model_name).removesuffix(".json")
        passed = ("optimizer", "dispatcher", "offload", "fused_loss", "compiled")
        self.fixed = [f"{key}={given[key]}" for key in passed if key in given]

    def path_of(self, values: Values) -> Path:
        """Return the config.json of the chosen model, which is written anew where its sizes were changed."""
        model = self.models[values["model"]]
        changed = {
            name: whole(values, name)
            for name, size in model.sizes().items()
            if size is not None and values[name] != size
        }
        if not changed:
            return model.path
        names = {name: next(key for key in SIZES[name] if key in model.config) for name in changed}
        config = {**model.config, **{names[name]: size for name, size in changed.items()}}
        path = self.folder / digest(config) / f"{values['model']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
        return path

    def words_of(self, values: Values, search: bool = False) -> list[str]:
        """Return the words of the command; raises ConfigError for a control that is empty."""
        words = [f"model={self.path_of(values)}"]
        left_out = ("micro_batch_size", "recompute") if search else ()
        for name in FIELDS:
            if name not in left_out and (text := text_of(values, name)):
                words.append(f"{name}={text}")
        network = "" if values["network"] == "infiniband" else f",{values['network']}"
        words += [f"link={number_of(values, 'link'):g}gbit{network}", *self.fixed]
        if not search:
            parts = {name: text_of(values, name) for name in LAYOUT}
            words.append("layout=" + ",".join(f"{name}:{text}" for name, text in parts.items() if text))
        return words

    def question(self, values: Values, search: bool = False) -> Question:
        """Return the question of the controls; raises ConfigError."""
        return first_question(self.words_of(values, search))


def first_question(words: Sequence[str]) -> Question:
    """Return the question of words; raises ConfigError."""
    return step_question(words_of(words, ADVISE))


def text_of(values: Values, name: str) -> str:
    """Return a control's value as the command has it, empty where it may be; raises ConfigError."""
    value = values[name]
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(int(value))
    if value is None and name in OPTIONAL:
        return ""
    return str(whole(values, name))


def whole(values: Values, name: str) -> int:
    """Return a control's whole number; raises ConfigError."""
    value, least = values[name], 0 if name == "zero" else 1
    if not isinstance(value, int) or not least <= value <= MOST.get(name, value):
        shown = name if value is None else f"{name}={value}"
        raise ConfigError(f"{shown}: expected a whole number from {least} to {MOST[name]:,}")
    return value


def number_of(values: Values, name: str) -> float:
    """Return a control's number; raises ConfigError."""
    value = values[name]
    if not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"{name}: expected a number above 0, as 400")
    return float(value)


def values_of(question: Question, model: str, known: KnownModel) -> dict[str, Any]:
    """Return the values of all controls for a question."""
    names = {"gpus": "devices", "program": ""}
    same = {name: getattr(question, names.get(name, name) or name) for name in (*FIELDS, *LAYOUT)}
    same |= {"program": question.program_of(), "link": question.network_B_per_s * 8 / 1e9}
    return {"model": model, **known.sizes(), **same, "network": question.network}


def layout_values(answer: Answer) -> dict[str, Any]:
    """Return the controls of the layout that an answer has first; empty where none fits."""
    if not answer.layouts:
        return {}
    parts = answer.layouts[0].parts
    found: dict[str, Any] = {name: parts[name] for name in (*LAYOUT, "micro_batch_size")}
    found["recompute"] = RECOMPUTES[parts["recompute"]]
    found["sequence_parallel"] = bool(parts["sequence_parallel"]) or parts["tp"] == 1
    if parts["shard_size"] == parts["dp"] * parts["cp"]:
        found["shard_size"] = None  # all of them, also once there are others
    return found
