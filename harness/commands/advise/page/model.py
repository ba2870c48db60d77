"""The process that has the model of a step, asked through pipes: torch is loaded there, never here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

from harness.config.validation import ConfigError
from harness.records import Cell, Reading, Record, Status, gather

MODULE = "suites.layouts.page"


class StepModel:
    """The model's process. It ends with this one, whose end closes its input; a lost one is started again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = self._started()
        self.devices: Sequence[str] = ()  # whose seconds are known

    def _started(self) -> subprocess.Popen[str]:
        """Start the process, in a session of its own, since Ctrl-C is for this one."""
        command, pipe = [sys.executable, "-m", MODULE], subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)

    def __enter__(self) -> Self:
        self.devices = json.loads(self._line())["devices"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        """Return the next line of the process; raises ConfigError where it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError(f"the model's process ended with exit status {self._process.wait()}")
        return line

    def ask(self, workload: Mapping[str, object], view: str = "step") -> StepAnswer:
        """Return the answer for a workload of suite layouts; raises ConfigError where it is refused."""
        with self._lock:
            if self._process.poll() is not None:
                self._process = self._started()
                self._line()
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"workload": workload, "view": view}) + "\n")
            self._process.stdin.flush()
            said = json.loads(self._line())
        if "refused" in said:
            raise ConfigError(said["refused"])
        return StepAnswer(said)


class StepAnswer:
    """An answer of the model."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        cell = Cell("", "layouts", "asked", "baseline", "baseline", 0, 0, {})
        measurements = gather([Reading(*one) for one in said["readings"]])
        self.record = Record(
            cell,
            Status.OK,
            measurements=measurements,
            notes=tuple(said["notes"]),
            conditions=said["conditions"],
        )
        self.timeline: Mapping[str, Any] = said.get("timeline", {})
        self.memory: Mapping[str, Any] = said.get("memory", {})
