"""Identify the code behind a number: the files that a module imports, found by reading, not running."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

from harness.config.validation import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def file_of(module: str, root: Path = ROOT) -> Path | None:
    """Return the file of a dotted module below `root`, or None for an external module."""
    base = root.joinpath(*module.split("."))
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def module_of(file: Path, root: Path = ROOT) -> str:
    """Return the dotted name of a module's file below `root`."""
    return ".".join(file.relative_to(root).with_suffix("").parts)


def parsed(file: Path, root: Path = ROOT) -> ast.Module:
    """Return the syntax tree of a module; raises ConfigError, with the line, where it is not Python."""
    try:
        return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown_path(file, root)}: not UTF-8 (byte {error.start})") from None
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise ConfigError(f"{shown_path(file, root)}{line}: {error.msg}") from None


def shown_path(file: Path, root: Path = ROOT) -> Path:
    """Return a file's path as errors name it: below `root`, where it is there."""
    return file.relative_to(root) if file.is_relative_to(root) else file


@cache
def imports_of(file: Path, root: Path = ROOT) -> frozenset[str]:
    """Return this project's dotted names that a file imports anywhere in it, relative ones resolved."""
    package = list(file.relative_to(root).with_suffix("").parts[:-1])
    modules: set[str] = set()
    for node in ast.walk(parsed(file, root)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join(filter(None, [*base, node.module]))
            modules |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return frozenset(n for n in modules if file_of(n, root))


def closure(modules: tuple[str, ...], root: Path = ROOT) -> frozenset[Path]:
    """Return every file of this project that importing `modules` would run, including their packages'."""
    seen: set[Path] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        file, parent = file_of(name, root), name.rpartition(".")[0]
        if parent and file_of(parent, root) not in seen:
            waiting.append(parent)
        if file is not None and file not in seen:
            seen.add(file)
            waiting.extend(imports_of(file, root))
    return frozenset(seen)


def source_digest(modules: tuple[str, ...], root: Path = ROOT) -> str:
    """Return sixteen hexadecimal digits that change when any file in the closure of `modules` does."""
    digest = hashlib.sha256()
    for file in sorted(closure(modules, root)):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
