"""Read in the installed transformers' source which architectures and sizes it has; nothing is imported.

The parent refuses an unknown `model_type` by it. Where the source cannot be read, everything is taken as
known, and the worker finds out.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from harness.config.validation import nearest

ENTRY = re.compile(r"""["']([\w.-]+)["'][,:]\s*["']\w+Config["']""")
"""A `model_type` with its config class, in the tables of transformers.models.auto."""


def models_folder() -> Path | None:
    """Return the folder of all architectures; None where transformers is not installed."""
    spec = find_spec("transformers")
    return Path(spec.origin).parent / "models" if spec and spec.origin else None


@cache
def model_types() -> frozenset[str]:
    """Return every `model_type` that has a config class; empty where that cannot be read."""
    folder = models_folder()
    files = sorted(folder.glob("auto/*.py")) if folder else []
    tables = [file for file in files if file.stem in ("auto_mappings", "configuration_auto")]
    return frozenset(name for file in tables for name in ENTRY.findall(file.read_text(encoding="utf-8")))


def unknown_model_type(model_type: str, own_code: bool) -> str:
    """Return why transformers cannot build a model; "" where it can, or where that is not known here.

    `own_code`: the config.json names code of its own.
    """
    known = model_types()
    if not known or model_type in known:
        return ""
    near = nearest(model_type, known)
    hint = f"; did you mean {near}?" if near else ""
    own = "; its own code (auto_map) is not run, suite.model takes code" if own_code else ""
    return f"model_type {model_type!r} is unknown to transformers {_version()}{hint}{own}"


def has_size(model_type: str, name: str) -> bool:
    """Return whether an architecture's config class has a size; True where that cannot be read."""
    folder = models_folder()
    names = (model_type.replace("-", "_"), model_type.removesuffix("_text"))
    files = [folder / one / f"configuration_{one}.py" for one in names] if folder else []
    source = next((file.read_text(encoding="utf-8") for file in files if file.is_file()), name)
    return name in source


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # 30 ms, for an error's text alone

    try:
        return version("transformers")
    except PackageNotFoundError:
        return ""
