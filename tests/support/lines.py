"""`make lines`: lines of Python and YAML by folder, next to what each may have; rows of data do not count."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]

CEILINGS = {"harness": 33_000, "suites": 44_000, "tests": 32_000, "conf": 12_500}
"""Lines at most, once the house has its weight."""

MOST_FILES = 520  # Python files of harness and suites at most


def main() -> None:
    tracked = subprocess.run(["git", "ls-files", *CEILINGS], cwd=ROOT, capture_output=True, text=True).stdout
    files = [Path(name) for name in tracked.splitlines() if name.endswith((".py", ".yaml"))]
    lines = {file: len((ROOT / file).read_text().splitlines()) for file in files if (ROOT / file).is_file()}
    for folder, most in CEILINGS.items():
        parts: Counter[str] = Counter()
        for file, count in lines.items():
            if file.parts[0] == folder:
                parts["/".join(file.parts[: min(2, len(file.parts) - 1)])] += count
        print(f"{folder:32}{sum(parts.values()):9,} of {most:,}")
        for part, count in parts.most_common(8):
            print(f"  {part:30}{count:9,}")
    count = sum(file.suffix == ".py" and file.parts[0] in ("harness", "suites") for file in lines)
    print(f"{'Python files':32}{count:9,} of {MOST_FILES}")


if __name__ == "__main__":
    main()
