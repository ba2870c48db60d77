"""Print the shape of the config.json on standard input as JSON; status 1 and one line where it has none."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from harness.records import Unavailable
from suites.training.layouts.shape_of_config import shape_of_config

try:
    sys.stdout.write(json.dumps(asdict(shape_of_config(json.load(sys.stdin)))))
except Unavailable as error:
    sys.exit(str(error))
