"""What the page asks: the values of its controls to the words of `harness.advise`, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.answer import Answer
from harness.ask.words import ADVISE, PARTS, step_question, words_of
from harness.ask.written import RECOMPUTES
from harness.config.hf_config import SIZES
from harness.config.run import load
from harness.config.validation import ConfigError
from harness.question import Question
from harness.records import digest

Values = Mapping[str, Any]
"""By a control's name: a number, a text, or None where it is empty."""

LAYOUT = PARTS[1:]
"""Controls that are parts of `layout=`, which leave the data-parallel ranks."""

FIELDS = (
    *("gpus", "gpus_per_node", "device", "seq_len", "global_batch_size", "micro_batch_size"),
    *("recompute", "program", "precision"),
)
"""Controls that are words of the command by the same name."""

CONTROLS = ("model", *SIZES, *FIELDS, "link", "network", *LAYOUT, "mine")

MOST: Mapping[str, int] = {
    **dict.fromkeys(SIZES, 10_000_000),
    **dict.fromkeys(LAYOUT, 100_000),
    **dict.fromkeys(("gpus", "gpus_per_node"), 1_000_000),
    **dict.fromkeys(("seq_len", "micro_batch_size", "global_batch_size"), 100_000_000),
}
"""The largest numbers that the page takes; larger ones would only keep it busy."""

OPTIONAL = ("global_batch_size", "etp", "shard_size")
"""Controls that may be empty."""

WITHOUT_CONTROL = ("optimizer", "dispatcher", "offload", "fused_loss", "compiled")
"""Words of the command that stay as they were given."""

DEFAULT_WORKLOAD = "llama_70b_128"
"""Of suite layouts: what the page begins with where no model is given."""


class KnownModel(NamedTuple):
    """A model that the page offers."""

    path: Path  # of its config.json
    config: Mapping[str, Any]
    given: bool = False  # by the user; else it is one of suite layouts

    def sizes(self) -> dict[str, int | None]:
        """Return the sizes that the config has, by the names of the controls; None for others."""
        return {
            name: next((self.config[key] for key in keys if key in self.config), None)
            for name, keys in SIZES.items()
        }


class AskedPage:
    """The models that can be chosen, and the words that no control has."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        """Raise ConfigError where the words are refused.

        `words`: those of the command without `serve`; `folder`: for configs that the page writes.
        """
        self.folder = folder
        workloads = load(["suite=layouts"])[0].workloads
        names = {key: one["source"].partition(",")[0].partition("/")[2] for key, one in workloads.items()}
        self.models = {
            names[key]: KnownModel(self._written(names[key], fields["hf_config"]), fields["hf_config"])
            for key, fields in workloads.items()
        }
        given = words_of(words, ADVISE).values
        named = "model" in given or "config" in given
        if not named:
            own = {name: workloads[DEFAULT_WORKLOAD][name] for name in ("seq_len", "global_batch_size")}
            own |= {"model": self.models[names[DEFAULT_WORKLOAD]].path}
            own |= {"devices": workloads[DEFAULT_WORKLOAD]["gpus"]}
            said = {*given, *(["global_batch_size"] if "tokens_per_batch" in given else [])}
            words = [*(f"{key}={text}" for key, text in own.items() if key not in said), *words]
        self.first = first_question(words)
        self.first_model = Path(self.first.model_name).name.removesuffix(".json") or "model"
        if named:
            config, path = self.first.config or {}, Path(given.get("model", ""))
            path = path if path.is_file() else self._written(self.first_model, config)
            own_model = {self.first_model: KnownModel(path, config, "model" in given)}
            self.models = {**own_model, **self.models, **own_model}
        self.fixed = [f"{key}={given[key]}" for key in WITHOUT_CONTROL if key in given]

    def _written(self, name: str, config: Mapping[str, Any], folder: str = "") -> Path:
        path = self.folder / folder / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
        return path

    def first_values(self) -> dict[str, Any]:
        """Return the values of all controls for the first question."""
        question, names = self.first, {"gpus": "devices"}
        same = {name: getattr(question, names.get(name, name)) for name in (*FIELDS, *LAYOUT)}
        same |= {"program": question.program_of(), "link": question.network_B_per_s * 8 / 1e9}
        sizes = self.models[self.first_model].sizes()
        return {"model": self.first_model, **sizes, **same, "network": question.network, "mine": None}

    def path_of(self, values: Values) -> Path:
        """Return the config.json of the chosen model, which is written anew where its sizes were changed."""
        model = self.models[values["model"]]
        changed = {
            next(key for key in SIZES[name] if key in model.config): whole(values, name)
            for name, size in model.sizes().items()
            if size is not None and values[name] != size
        }
        config = {**model.config, **changed}
        return self._written(values["model"], config, digest(config)) if changed else model.path

    def words_of(self, values: Values, search: bool = False) -> list[str]:
        """Return the words of the command; raises ConfigError for a control that is empty."""
        words = [f"model={self.path_of(values)}"]
        left_out = ("micro_batch_size", "recompute") if search else ()
        texts = {name: text_of(values, name) for name in FIELDS if name not in left_out}
        words += [f"{name}={text}" for name, text in texts.items() if text]
        link, network = values["link"], values["network"]
        if not isinstance(link, int | float) or link <= 0:
            raise ConfigError("link: expected a number above 0, as 400")
        words += [f"link={link:g}gbit{'' if network == 'infiniband' else f',{network}'}", *self.fixed]
        if not search:
            parts = {name: text_of(values, name) for name in LAYOUT}
            words.append("layout=" + ",".join(f"{name}:{text}" for name, text in parts.items() if text))
            if isinstance(values["mine"], int | float) and values["mine"] > 0:
                words.append(f"mine={values['mine']:g}s")
        return words


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
    return "" if value is None and name in OPTIONAL else str(whole(values, name))


def whole(values: Values, name: str) -> int:
    """Return a control's whole number; raises ConfigError."""
    value, least = values[name], 0 if name == "zero" else 1
    if not isinstance(value, int) or not least <= value <= MOST.get(name, value):
        shown = name if value is None else f"{name}={value}"
        raise ConfigError(f"{shown}: expected a whole number from {least} to {MOST[name]:,}")
    return value


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
