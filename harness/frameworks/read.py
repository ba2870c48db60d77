"""The entry points: a framework's own file to a Question, and a Question to a framework's file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import msgspec
import yaml

from harness.frameworks.models import model_of, with_embedding, with_model_parts
from harness.frameworks.parse import SHELLS, SOURCED, of_its_kind, parsed_file, parsed_text
from harness.frameworks.python_text import CONDITIONS, Unresolved
from harness.frameworks.recipes import named_recipe
from harness.frameworks.shell import named_yaml
from harness.frameworks.sourced import sourced_among
from harness.frameworks.table import (
    DEFAULTS,
    LEFT,
    Flat,
    Framework,
    KeyRow,
    Parts,
    framework_named,
    frameworks,
    is_off,
    kind_of,
    matches,
    nested,
    ours,
    refusal,
    theirs,
    yaml_tree,
)
from harness.frameworks.words import hub_name, keeps_fp32, optimizer_of, usual_parts
from harness.question import FieldOrigin, KeyRead, Question, question_of

REFERENCES = {
    "config": "",
    "megatron_bridge_args": "",
    "launcher.config_file": "accelerate",
    "accelerate_config": "accelerate",
    "deepspeed": "deepspeed.",
    "deepspeed_config": "deepspeed.",
    "deepspeed_config.deepspeed_config_file": "deepspeed_config.",
    "dist_config.config_file": "deepspeed.",
    "launcher.deepspeed_config_file": "deepspeed.",
    "fsdp": "fsdp.",
    "fsdp_config": "fsdp_config.",
}
"""Keys whose value may be another file with more of the configuration, and the section that it is."""

WORDS = ("comment", "description", "doc", "note", "param_docs", "readme", "requires")
"""How keys begin, after an underscore, that hold a file's own words."""

TRAINS = re.compile(r"\btrain/train\.py\s+\S+\.ya?ml\b")
"""LLM Foundry's command, which trains by a YAML."""

COMPANIONS = {"accelerate": "accelerate", "deepspeed": "deepspeed."}
"""Formats of files that stand next to a trainer's, and their section."""

EXPRESSED = (
    *("tp", "pp", "cp", "ep", "virtual_stages", "zero", "replicas", "shard_size"),
    *("precision", "states", "optimizer", "offload", "adapters"),
)
"""Fields that a file must have a key for where they differ from the default; else it is of another run."""

ALWAYS = ("micro_batch_size", "seq_len")
"""Fields that are written where they are a default, too."""


def framework_of(flat: Flat) -> Framework:
    """Return the framework of a file's values; raises ValueError with what was seen instead."""
    other = other_file(flat)
    named = str(flat.get("config") or "").endswith((".yaml", ".yml", ".json", ".toml"))
    if named and not any("model" in key for key in flat):
        raise ValueError(
            f"it names {flat['config']}, which was not found: give it too, as config=[FILE,FILE]"
        )
    counts = {name: framework.recognised(flat) for name, framework in frameworks().items()}
    best = max(counts, key=lambda name: counts[name])
    if counts[best] and not other:
        return framework_named(best)
    keys = shorten(", ".join(list(flat)[:3]), 70, placeholder=" ...")
    if not other and "_imports" in flat:
        raise ValueError(
            "a Python program that builds no configuration of a known framework; give the command that "
            "starts it, or the configuration that it writes"
        )
    if not other and SOURCED in flat:
        raise ValueError(
            f"its options are in {flat[SOURCED]}, which it sources: give it too, as config=[FILE,FILE]"
        )
    if not other and any(key.startswith("launcher.") for key in flat):
        raise ValueError(
            f"it starts a program by options of no known framework ({keys}); give the program's own file, "
            "too, as config=[FILE,FILE]"
        )
    seen = other or f"it has {keys}; those that are read are in docs/commands/own-files.md"
    raise ValueError(f"no configuration of a known framework: {seen}")


def other_file(flat: Flat) -> str:
    """Return in a few words which other file has such keys; "" where none is known."""
    if "architectures" in flat and "model_type" in flat:
        return "it is a model's config.json; give it as model="
    instead = kind_of(flat, yaml_tree("other_tools")["instead"])
    if instead and "train.py" not in str(flat.get("command")):  # of a job that trains after it prepares data
        return instead[0]
    found = kind_of(flat, yaml_tree("other_tools")["tools"])
    return f"it is a file of {found[0]} ({found[1][:60]}), which is not read" if found else ""


def read_own_file(path: str | Path, format_: str | None = None) -> Question:
    """Return the question that a framework's own file asks.

    `format_`: its framework's name, where it shall not be recognised by its keys. Raises ValueError with one
    line that names the file, what was recognised, and what is wrong or missing.
    """
    file = Path(path)
    flat = _values_of(str(path))
    try:
        with of_its_kind():
            return _question(flat, format_, file.parent, f"{file.parent.name}/{file.name}")
    except ValueError as error:
        raise ValueError(str(error) if str(file) in str(error) else refusal(file, str(error))) from error


def read_own_files(paths: Sequence[str]) -> Question:
    """Return the question of a trainer's file and of those next to it: accelerate's, DeepSpeed's, a script.

    Raises ValueError with one line where two of them say otherwise.
    """
    if not paths:
        raise ValueError("names no file; give one, or several as [FILE,FILE]")
    if len(paths) == 1:
        return read_own_file(paths[0])
    scripts = [Path(path) for path in paths if Path(path).suffix in SHELLS]
    inner = sourced_among(scripts)
    paths = [path for path in paths if Path(path) not in inner] or paths
    flats = {path: _values_of(path, scripts) for path in paths}
    formats = {path: _format_of(flat) for path, flat in flats.items()}
    trainers = [path for path in paths if formats[path] not in COMPANIONS]
    named = {Path(str(flat["config"])).name for flat in flats.values() if flat.get("config")}
    trainers.sort(key=lambda path: Path(path).name in named)  # what names a file replaces values of its own
    first = trainers or [path for path in paths if formats[path] == "accelerate"] or list(paths)
    values: dict[str, Any] = {}
    given_in: dict[str, str] = {}
    for path in (*first, *(path for path in paths if path not in first)):
        section = "" if path in first else COMPANIONS[formats[path]] if trainers else "deepspeed_config."
        for key, value in _in_section(flats[path], section).items():
            was = values.get(key, "auto")
            if value != was and "auto" not in (value, was) and Path(path).name not in named:
                raise ValueError(f"{key} is {was!r} in {given_in[key]} and {value!r} in {path}; give it once")
            if was == "auto":
                values[key], given_in[key] = value, path
    sections = {COMPANIONS[formats[path]] for path in paths if path not in first}
    replaced = [
        key for key, section in REFERENCES.items() if section in sections or len(first) > 1 > len(section)
    ]
    file = Path(first[0])
    kept = {key: value for key, value in values.items() if key not in replaced}
    with of_its_kind():
        return _question(kept, None, file.parent, f"{file.parent.name}/{file.name}")


def _values_of(path: str, beside: Sequence[Path] = ()) -> Flat:
    """Return the values of a file, or of a recipe by its name where there is no such file."""
    return (None if Path(path).exists() else named_recipe(path)) or of_job(parsed_file(Path(path), beside))


def of_job(flat: Flat) -> Flat:
    """Return the values of a job of MosaicML's platform with those of its command that trains by a YAML.

    (llm-foundry 8c8dd48, mcli/mcli-1b.yaml) The job's own `parameters` are such a YAML themselves.
    """
    command = str(flat.get("command", ""))
    lines = [line for line in command.replace("\\\n", " ").splitlines() if TRAINS.search(line)]
    if not lines or any(key.startswith("parameters.") for key in flat):
        return flat
    return {key: value for key, value in flat.items() if key != "command"} | named_yaml(lines[0])


def _format_of(flat: Flat) -> str:
    """Return a file's format, "" where it is none alone."""
    try:
        return framework_of(flat).name
    except ValueError:
        return ""


def read_own_text(text: str, format_: str | None = None, suffix: str = "") -> Question:
    """Return the question that a text asks, such as a command line; see `read_own_file`."""
    return _question(parsed_text(text, suffix), format_, None)


def _question(flat: Flat, format_: str | None, folder: Path | None, name: str = "") -> Question:
    flat = with_references(flat, folder)
    framework = framework_named(format_) if format_ else framework_of(flat)
    try:
        question = read_values(flat, framework, name, folder)
    except ValueError as error:
        if SOURCED not in flat:
            raise
        raise ValueError(
            f"{error}; {flat[SOURCED]}, which it sources and is not there, may set it"
        ) from error
    return _with_model(question, folder)


def with_references(flat: Flat, folder: Path | None) -> Flat:
    """Return the values with those of files that they name.

    A file is looked for relative to its own folder and to this one. DeepSpeed's configurations that axolotl
    and LLaMA-Factory ship are known by their names (conf/frameworks/deepspeed_files.yaml).
    """
    for key, section in REFERENCES.items():
        name = flat.get(key)
        inner = _referenced(name, folder, section) if isinstance(name, str) else None
        if inner is not None:
            others = {other: value for other, value in flat.items() if other != key}
            flat = _in_section(inner, section) | others
    return flat


def _in_section(inner: Flat, section: str) -> dict[str, Any]:
    """Return another file's values by the names that a trainer's file has for them."""
    if section == "accelerate":
        return _of_accelerate(inner)
    return {f"{section}{key}": value for key, value in inner.items()}


def _of_accelerate(inner: Flat) -> dict[str, Any]:
    """Return accelerate's configuration by the names that TrainingArguments have."""
    kind = str(inner.get("distributed_type")).upper()
    zero, fsdp, mesh = "deepspeed_config.", "fsdp_config.", "parallelism_config."
    offload = {f"{zero}offload_{one}_device": f"offload_{one}.device" for one in ("optimizer", "param")}
    names = {f"{zero}zero_stage": "stage", **offload} if kind == "DEEPSPEED" else {}
    names = {key: f"deepspeed.zero_optimization.{name}" for key, name in names.items()}
    names |= {key: f"launcher.{key}" for key in ("num_processes", "distributed_type", "mixed_precision")}
    sections = (mesh, fsdp) if kind == "FSDP" else (mesh,)
    kept = {
        names.get(key, key): value for key, value in inner.items() if key in names or key.startswith(sections)
    }
    if kind == "FSDP" and not {f"{fsdp}fsdp_version", f"{fsdp}version"} & kept.keys():
        kept[f"{fsdp}fsdp_version"] = 1  # accelerate's default, and the stage below
    if kind == "DEEPSPEED" and (file := inner.get(f"{zero}deepspeed_config_file")):
        kept["deepspeed"] = file
    elif kind == "DEEPSPEED":
        kept.setdefault("deepspeed.zero_optimization.stage", 2)
    return kept


def _referenced(name: str, folder: Path | None, section: str) -> Flat | None:
    """Return the values of a file that another names; None where it is neither there nor known."""
    places = [Path(name), *([folder / name, folder / Path(name).name] if folder else [])]
    for place in places:
        if name.endswith((".json", ".yaml", ".yml")) and place.is_file():
            return parsed_file(place)
    last = Path(name).name + (".yaml" if section == "accelerate" and "." not in name else "")
    shipped = yaml_tree("deepspeed_files")["files"].values()
    return next((dict(files[last]) for files in shipped if last in files), None)


def _with_model(question: Question, folder: Path | None) -> Question:
    """Return the question with its model: the file's own sizes, a config.json, or the published shape."""
    if question.config is not None:
        source = question.model_source or "sizes in the file"
        return with_embedding(msgspec.structs.replace(question, model_source=source))
    model = model_of(question.model_name, folder) if question.model_name else None
    if model is None:
        return question
    origins = {**question.origins, "config": question.origin("model_name")}
    fields = {"config": dict(model.config), "model_source": model.source, "origins": origins}
    return with_model_parts(msgspec.structs.replace(question, **fields), published=bool(model.hub))


def current_names(flat: Flat, renamed_keys: Mapping[str, str]) -> tuple[dict[str, Any], list[KeyRead]]:
    """Return the values by this version's keys, and the keys that other versions name otherwise."""
    values: dict[str, Any] = {}
    renamed = []
    for key, value in flat.items():
        section, _, name = key.partition(".")
        new = renamed_keys.get(key, renamed_keys.get(f"{section}.*", "").replace("*", name)) or None
        if new is None:
            values[key] = value
        elif value is not None:
            if flat.get(new) not in (None, value):
                raise ValueError(
                    f"{key} and {new} are both given; one is the other's name in another version"
                )
            means = f"another version's name of {new}"
            renamed.append(KeyRead(key=key, value=value, status="understood", field=new, means=means))
            values[new] = value
    return values, renamed


def read_values(flat: Flat, framework: Framework, name: str = "", folder: Path | None = None) -> Question:
    """Return the question that the values of a file ask, `name` its own; raises ValueError with one line."""
    prepared = getattr(framework.module, "prepared", dict)
    flat = dict(flat)
    conditions, sourced = flat.pop(CONDITIONS, ()), flat.pop(SOURCED, None)
    values, keys = current_names(prepared(flat), framework.renamed)
    parts = Parts(values, name, folder)
    for key, _, condition in (one.partition(": ") for one in conditions):
        parts.leave_out(key, condition, "what this statement of the script may change is not followed")
    if sourced:
        parts.leave_out(SOURCED, sourced, "a file of options, not found: give it too, as config=[FILE,FILE]")
    given: list[tuple[str, KeyRow]] = []
    of_values = [pattern for pattern in framework.matters if "=" in pattern]
    for key, row in framework.keys.items():
        value = values.get(key)
        of_launcher = key.startswith("launcher.") or row.of == "devices"
        if of_launcher and isinstance(value, str) and value.startswith("$"):
            parts.leave_out(key, value, "known when the script runs; devices= gives it", "none", "none")
            value = None
        if isinstance(value, Unresolved):
            parts.leave_out(key, str(value), "known when the program runs; its default is taken")
            value = None
        automatic = value == "auto" and "auto" not in (row.values or ())
        decided = value is not None and not automatic
        our = ours(key, row, value if decided else row.default)
        if pattern := matches(f"{key}={value}".lower(), of_values):
            parts.left_out.append(msgspec.structs.replace(framework.matters[pattern], key=key, value=value))
        if value is not None:
            keys.append(_read(key, value, row, "understood"))
        elif row.default is not None and row.field not in parts:
            keys.append(_read(key, row.default, row, "default"))
        if decided:
            given.append((key, row))
        if our is not None and (decided or row.field not in parts):
            parts[row.field] = optimizer_of(key, our, parts) if row.kind == "optimizer" else our
    settled = {"program": framework.program, **parts.fields, **framework.module.settle(parts)}
    if settled.get("states") == "bf16" and settled.get("adapters") is None:
        for key in (key for key, row in given if row.kind == "optimizer" and keeps_fp32(str(values[key]))):
            why = "states in fp32, though the weights are in bf16"
            parts.leave_out(key, values[key], why, "raises", "raises")
    if (parts.get("_nodes") or 1) > 1 and parts.get("_per_node"):
        settled["gpus_per_node"] = parts["_per_node"]
    keys += [_other(key, value, framework) for key, value in values.items() if key not in framework.keys]
    left_out = {one.key for one in parts.left_out}
    missing = {field: why for field, why in framework.assumed.items() if field not in settled}
    origins = {field: _origin(field, given, framework) for field in settled if settled[field] is not None}
    origins |= {field: FieldOrigin("assumption", why) for field, why in (missing | parts.assumed).items()}
    origins |= {field: FieldOrigin("missing", why) for field, why in parts.missing.items()}
    if "gpus_per_node" in settled and "devices" in origins:
        origins["gpus_per_node"] = origins["devices"]
    return question_of(
        format=framework.name,
        framework=framework.source,
        keys=(*(one for one in keys if one.key not in left_out), *parts.left_out),
        origins=origins,
        **settled,
    )


def _read(key: str, value: Any, row: KeyRow, status: Any) -> KeyRead:
    return KeyRead(key=key, value=value, status=status, field=row.of, means=row.means)


def _origin(field: str, given: Sequence[tuple[str, KeyRow]], framework: Framework) -> FieldOrigin:
    """Return where a field comes from: the keys of the file that decide it, three at most, or the default."""
    keys = [key for key, row in given if field in row.of.split()]
    if keys:
        return FieldOrigin("key", ", ".join(keys[:3]))
    return FieldOrigin("default", framework.source)


def _other(key: str, value: Any, framework: Framework) -> KeyRead:
    """Return what becomes of a key that has no row: it changes nothing, is not modelled, or not known."""
    value = str(value) if isinstance(value, Unresolved) else value
    of_value = f"{key}={value}"
    spelled = (of_value, of_value.lower(), key)
    found = [pattern for one in spelled if (pattern := matches(one, framework.matters))]
    pattern = max(found, key=len, default=None)
    of_key = [one for one in framework.irrelevant if "=" not in one]
    of_pair = [one for one in framework.irrelevant if "=" in one]
    harmless = matches(of_value.lower(), of_pair) or matches(key, of_key)
    off = is_off(value) and "=" not in (pattern or "")
    if off or (harmless and len(harmless) >= len(pattern or "")):
        return KeyRead(key=key, value=value, status="irrelevant")
    if pattern:
        return msgspec.structs.replace(framework.matters[pattern], key=key, value=value)
    if any(part.startswith("_") and part.strip("_").startswith(WORDS) for part in key.split(".")):
        return KeyRead(key=key, value=value, status="irrelevant")  # a file's own words, as _description
    means = f"no key of {framework.source}"
    return KeyRead(key=key, value=value, status=LEFT, means=means)  # in which direction is not known


def write_own(question: Question, format_: str) -> str:
    """Return a framework's own file of a question; raises ValueError with what it cannot express."""
    framework = framework_named(format_)
    flat = {key: value for key, value in written_values(question, framework).items() if value is not None}
    if framework.suffix == ".toml":
        return _toml(flat)
    if framework.suffix == ".json":
        return json.dumps(nested(flat), indent=2) + "\n"
    if not framework.suffix:
        return " \\\n    ".join(_option(key, value) for key, value in flat.items()) + "\n"
    return yaml.safe_dump(nested(flat), sort_keys=False)


def read_back(question: Question, format_: str, text: str) -> dict[str, tuple[Any, Any]]:
    """Return what a written file says otherwise than the question: by field, what was asked and what it says.

    Raises ValueError where the file cannot be read.
    """
    again = read_own_text(text, format_, framework_named(format_).suffix)
    given = [name for name, origin in again.origins.items() if origin.kind != "assumption"]
    if question.sharing == again.sharing == "zero":  # without a key it is DeepSpeed's default
        given.append("reduce_bucket")
    names = {name: getattr(question, name) for name in msgspec.structs.asdict(again) if name in given}
    said = {name: getattr(again, name) for name in names}
    return {name: (names[name], said[name]) for name in names if names[name] != said[name]}


def _toml(flat: Flat) -> str:
    sections: dict[str, list[str]] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join(f"[{name}]\n" + "\n".join(lines) + "\n" for name, lines in sections.items())


def _option(key: str, value: Any) -> str:
    if value is True:
        return f"--{key}"
    values = value if isinstance(value, list) else [value]
    return " ".join([f"--{key}", *(shlex.quote(str(one)) for one in values)])


def written_values(question: Question, framework: Framework) -> Flat:
    """Return a framework's keys of a question; raises ValueError for what they cannot express.

    A key is left out where its value is the framework's default and Question's.
    """
    rows = framework.keys
    decided = {field for row in rows.values() if row.written for field in row.of.split()}
    for field in EXPRESSED:
        value = getattr(question, field)
        if value != DEFAULTS[field] and field not in decided and field not in framework.elsewhere.split():
            raise ValueError(f"{framework.title} has no key for {field} {value}"[:300])
    for field, allowed in framework.expresses.items():
        value = getattr(question, field)
        if any(one not in allowed for one in (value if isinstance(value, tuple) else [value])):
            words = ", ".join(map(str, allowed))
            raise ValueError(f"{framework.title} has no key for {field} {value}; it has {words}"[:300])
    parts = {field: getattr(question, field) for field in DEFAULTS} | usual_parts(question)
    if framework.hub_names:
        parts["model_name"] = hub_name(question)
    parts |= framework.module.parts_of(question)
    flat: dict[str, Any] = {}
    written = set()
    for key, row in rows.items():
        value = parts.get(row.field)
        if value is None and row.field in ALWAYS:
            value = row.default
        if not row.written or row.field in written or value is None:
            continue
        written.add(row.field)
        usual = value == DEFAULTS.get(row.field) and row.field not in ALWAYS
        if usual and (value == ours(key, row, row.default) or (row.default is None and is_off(value))):
            continue
        flat[key] = theirs(key, row, value)
    spelled: Callable[[Flat], Flat] = getattr(framework.module, "spelled", dict)
    return spelled(flat)
