"""The user's own model code, `suite.model=package.module:function`, as far as the parent knows it.

The parent looks for the module's file and reads it, for a cell's identity; the worker alone imports it.
"""

from __future__ import annotations

import hashlib
import re
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from harness.config.code_fingerprint import source_digest
from harness.config.validation import ConfigError, shown

FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages, of which one file is read and not all that it imports."""


def check_model(where: str, value: Any) -> None:
    """Raise ConfigError unless `value` is `package.module:function` and the module's file is found."""
    if not isinstance(value, str) or not FORM.fullmatch(value):
        raise ConfigError(f"{where}={shown(value)}: expected package.module:function")
    module = value.partition(":")[0]
    if _spec(module) is None:
        raise ConfigError(f"{where}={value}: no module {module}; is its folder in PYTHONPATH?")
    try:
        model_digest(value)
    except ConfigError as error:
        raise ConfigError(f"{where}={value}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}={value}: the source of {module} cannot be read: {error}") from None


@cache
def model_digest(value: str) -> str:
    """Return digits that change with the module's source, and with those next to it that it imports."""
    module = value.partition(":")[0]
    spec = _spec(module)
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin)
    if file.suffix != ".py" or any(part in INSTALLED for part in file.parts):
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    depth = module.count(".") + (file.name == "__init__.py")
    return source_digest((module,), file.parents[depth])


def _spec(module: str) -> ModuleSpec | None:
    """Return where Python would import a module from, without importing its packages; None: nowhere."""
    spec, path, name = None, None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return spec
