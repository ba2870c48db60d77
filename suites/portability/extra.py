"""The extra `portability`: whether an engine's packages are here, in a version whose interface is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from harness.records import Unavailable

INSTALL = "pip install 'throughput-harness[portability]'"


def missing(*modules: str) -> str | None:
    """Return why a variant that imports these modules cannot run; None where all are installed."""
    for module in modules:
        try:
            found = find_spec(module) is not None
        except ModuleNotFoundError:  # the package that the module would be in
            found = False
        if not found:
            return f"{module} is not installed; the extra `portability` brings it: {INSTALL}"
    return None


def installed(package: str) -> str:
    """Return a package's version, "" where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@contextmanager
def as_tried(package: str, tried: str) -> Iterator[None]:
    """Raise `Unavailable` where a package's interface is not that of the version that was tried.

    Encloses calls of the engine's own Python interface, not what compiles the graph.
    """
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        message = " ".join(str(error).split())[:160]
        raise Unavailable(
            f"{package} {installed(package)}: its interface is not that of {tried}, the one tried: {message}"
        ) from error
