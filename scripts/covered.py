"""Run tests, measured, and print which part of the lines of each package they run, in all processes (make coverage).

    python scripts/covered.py [ARGUMENTS OF PYTEST]...      (none: the tests of `make quick`)

Whoever interrupts it is told what was seen until then. The runner, which Python starts alone (`-I -S`), is seen, too,
and has a row of its own besides that of its package; only the lines between its fork and a job's exec are not. The last
row is the total.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from coverage import Coverage
from mutants_map import MEASURED, ROOT, environment

SOURCE = ROOT / "src" / "gpuloom"
RUNNER, TOTAL = "executors/runner", "all packages"
QUICK = ("-m", "not slow", "--ignore", "tests/docs")


def ended(tests: subprocess.Popen[bytes]) -> int:
    """Wait for them; an interrupt reaches them, too, and they write down what they have."""
    while True:
        try:
            return tests.wait()
        except KeyboardInterrupt:
            print("interrupted: the table is of what was run", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """What pytest said, and the table."""
    # Processes that outlive their tests may still write into it as it goes.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "pytest", "-n", "3", "--dist", "worksteal", "--timeout", "900"]
        there = environment(ROOT, PYTHONPATH=str(MEASURED), GPULOOM_COVERAGE=folder)
        if not arguments:
            there["GPULOOM_QUICK"] = "1"
        # Which test runs a line is not asked here (mutants_map.py does): that would take several times the space.
        with subprocess.Popen([*command, *(arguments or QUICK)], cwd=ROOT, env=there) as tests:
            code = ended(tests)
        measured = Coverage(data_file=f"{folder}/all", config_file=False, source=[str(SOURCE)])
        measured.combine([str(path) for path in Path(folder).glob("lines.*")])
        seen: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for path in sorted(SOURCE.rglob("*.py")):
            _, lines, _, missing, _ = measured.analysis2(str(path))
            names = [path.relative_to(SOURCE).parts[0] if path.parent != SOURCE else "gpuloom", TOTAL]
            if path.is_relative_to(SOURCE / RUNNER):
                names.append(RUNNER)
            for name in names:
                seen[name][0] += len(lines)
                seen[name][1] += len(missing)
    print(f"\n{'package':<16} {'lines':>7} {'run':>7}")
    for name, (lines, missing) in sorted(seen.items(), key=lambda row: (row[0] == TOTAL, row[0])):
        print(f"{name:<16} {lines:>7,} {100 * (1 - missing / max(lines, 1)):>6.1f} %")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
