"""Tables of live jobs and nodes: drawn by rich on a terminal; elsewhere plain, as wide as needed, without colours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import click

from gpuloom.bounded.text import cut
from gpuloom.cli.live import ago, plain, runs_of, short
from gpuloom.core.progress import it_per_s
from gpuloom.core.sums import sum_floats
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuloom.live.views.answers import StatusView
    from gpuloom.live.views.cluster_answers import GpuView, NodeView
    from gpuloom.live.views.job_answers import JobView

Row = TypeVar("Row")

STYLES = {
    "running": "green",
    "starting": "green",
    "queued": "yellow",
    "held": "yellow",
    "frozen": "cyan",
    "stopping": "cyan",
    "failed": "red",
    "finished": "dim",
    "cancelled": "dim",
    "up": "green",
    "ok": "green",
    "down": "red",
    "unhealthy": "red",
    "foreign": "magenta",
    "cordoned": "yellow",
    "draining": "yellow",
}
MOVED = "moved: its machine was drained"
"""For the reason 'node' of an attempt."""
RICH_ROWS = 500
"""Beyond, a terminal gets plain columns too: laying out each cell of thousands of rows takes seconds."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: title, cell of a row. gives: may be cut on a narrow terminal. least: narrower ones go without it."""

    title: str
    cell: Callable[[Row], str]
    right: bool = False
    gives: bool = False
    least: int = 0


def show_table(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> None:
    """Print it."""
    if sys.stdout.isatty() and len(rows) <= RICH_ROWS:
        from rich.console import Console

        console = Console(highlight=False)
        console.print(rich_table(columns, rows, console.width))
        return
    cells = [[c.title for c in columns], *([plain(c.cell(row)) for c in columns] for row in rows)]
    widths = _natural(cells)
    for line in cells:
        aligned = [_padded(t, w, c.right) for t, w, c in zip(line, widths, columns, strict=True)]
        click.echo("  ".join(aligned).rstrip())


def rich_table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> RenderableType:
    """The table as something that rich prints. It is laid out here: rich's own tables take more than they need."""
    from rich.text import Text

    kept = [c for c in columns if width >= c.least]
    cells = [[c.title for c in kept], *([plain(c.cell(row)) for c in kept] for row in rows)]
    widths = _fitted(kept, _natural(cells), width)
    lines = []
    for number, line in enumerate(cells):
        parts = [
            Text(_padded(_cut(text, wide), wide, c.right), STYLES.get(text, "") if number else "bold")
            for text, wide, c in zip(line, widths, kept, strict=True)
        ]
        lines.append(Text("  ").join(parts))
    table = Text("\n", no_wrap=True, overflow="crop").join(lines)
    return table


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes: some letters take two, some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _natural(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_cells, column)) for column in zip(*lines, strict=True)]


def _padded(text: str, width: int, right: bool) -> str:
    blank = " " * (width - _cells(text))
    return blank + text if right else text + blank


def _cut(text: str, width: int) -> str:
    if _cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1).rstrip() + "…"


def _fitted(columns: Sequence[Column[Row]], natural: Sequence[int], width: int) -> list[int]:
    """Widths that fit: those that may be cut are, the widest first, down to 4; the others keep theirs."""
    fitted = list(natural)
    room = width - 2 * (len(columns) - 1)
    gives = [i for i, c in enumerate(columns) if c.gives]
    while sum(fitted) > room and gives:
        widest = max(gives, key=lambda i: fitted[i])
        if fitted[widest] <= 4:
            break
        fitted[widest] -= 1
    return fitted


# -- jobs -------------------------------------------------------------------------------------------------------------


MOST_WORDS = 120
"""Letters of a reason in a list; `show` and --json have all."""


def shortened(text: str) -> str:
    """A text as one line of bounded length."""
    return cut(" ".join(text.split()), MOST_WORDS)


def progress_of(job: JobView) -> str:
    """What it reported last, in a word."""
    progress = job["progress"]
    fraction, step, steps = progress.get("fraction"), progress.get("step"), progress.get("steps")
    if isinstance(step, int | float) and isinstance(steps, int | float) and steps > 0:
        fraction = step / steps if fraction is None else fraction
    if isinstance(fraction, int | float):
        return f"{100 * fraction:.0f}%"
    return f"step {step:,}" if isinstance(step, int | float) else ""


def speed_of(job: JobView) -> str:
    """Iterations per second, as its report or hooks tell them."""
    progress = job["progress"]
    found = progress.get("it_per_s", it_per_s(progress))
    return f"{found:.4g}" if isinstance(found, int | float) else ""


def stages_of(job: JobView) -> str:
    """The bar of its stages, a letter for each tenth of its time: storage, cpu, gpu, network, turns, rest (.)."""
    return str(job["progress"].get("stages", ""))


REASONS = {
    "out_of_memory": "out of memory",
    "not_started": "could not be started",
    "lost": "lost: nobody saw its end",
    "node": MOVED,
    "peer": "ended with its gang",
    "timed_out": "time limit",
}
"""Words for the reasons of an end that are no words."""


def ended_words(job: JobView) -> str:
    """How a job ended, in few words."""
    reason, code, message = job["reason"], job["exit_code"], job["message"]
    if job["state"] == "finished":
        return ""
    words = {**REASONS, "timed_out": f"time limit of {short(job['time_limit_s'])}", "cancelled": ""}
    text = "" if reason is None else words.get(reason, reason)
    if reason == "failed":
        return message or ("failed" if code is None else f"exit code {code}")
    return message if message and (reason == "not_started" or not text) else text


def short_reason(job: JobView) -> str:
    """Why it waits or how it ended, and what the monitor says of it."""
    state = job["state"]
    parts = []
    if state in ("finished", "failed", "cancelled"):
        parts.append(ended_words(job))
    elif waiting := job["waiting"]:
        parts.append(waiting["text"])
    if state == "queued" and job["attempts"]:
        before = {
            "preempted": "preempted before",
            "resized": "being resized",
            "failed": "to be tried again",
            "lost": "lost before",
            "node": MOVED,
        }
        parts.append(before.get(job["reason"] or "", ""))
    parts += job["flags"].values()
    said = [part for part in parts if part]
    return "; ".join([*(part.rstrip(".") for part in said[:-1]), *said[-1:]])


def gpus_of(job: JobView) -> str:
    """The GPUs of a job; of an elastic one its replicas, and the fewest and most: '2 (1-8)', or '2 (1-8)x4' where each
    has 4 GPUs."""
    replicas = job["replicas"]
    if replicas is None:
        return str(job["gpus"])
    now = "-" if replicas["now"] is None else str(replicas["now"])
    each = f"x{replicas['gpus']}" if replicas["gpus"] > 1 else ""
    return f"{now} ({replicas['least']}-{replicas['most']}){each}"


JOB_COLUMNS: Sequence[Column[JobView]] = (
    Column("id", lambda j: str(j["id"]), right=True),
    Column("name", lambda j: j["name"], gives=True),
    Column("user", lambda j: j["user"], gives=True, least=90),
    Column("state", lambda j: j["state"]),
    Column("gpus", gpus_of, right=True, least=60),
    Column("where", lambda j: j["where"], gives=True, least=70),
    Column("waited", lambda j: short(j["waited_s"]), right=True, least=56),
    Column("ran", lambda j: short(j["run_s"]) if j["run_s"] else "", right=True),
    Column("done", progress_of, right=True, least=80),
    Column("reason", lambda j: shortened(short_reason(j)), gives=True),
)

# -- rates ------------------------------------------------------------------------------------------------------------


def _number(value: float | None, digits: int = 0, unit: str = "") -> str:
    return f"{value:,.{digits}f}{unit}" if value is not None else "-"


def gib(mib: float | None) -> str:
    """MiB as GiB."""
    return f"{mib / 1024:.1f}" if mib is not None else "-"


def _used_of(used: float | None, total: float | None) -> str:
    if total is None:
        return gib(used)
    return f"{gib(used)}/{gib(total)}"


def left_words(job: JobView, now_s: float) -> str:
    """How long it will run yet; of one that has outlived what was known of it, by how much. now_s: the scheduler's."""
    if job["overrun_s"]:
        return f"late {short(job['overrun_s'])}"
    end = job["predicted_end_s"]
    if end is not None:
        return short(max(end - now_s, 0.0))
    most = job["predicted_end_s_high"]
    return "-" if most is None else f"< {short(max(most - now_s, 0.0))}"


HOW_KNOWN = {
    "given": "its estimate",
    "progress": "its own progress",
    "array": "{} of its array",
    "earlier_runs": "{} of the same",
    "time_limit": "its time limit alone",
}
"""What a predicted end rests on, by source."""


def predicted_end(job: JobView, now_s: float) -> str:
    """When a job that runs is expected to end, on what that rests; '' if it does not run."""
    if job["state"] not in ("starting", "running"):
        return ""
    how = HOW_KNOWN.get(job["estimate_from"], "").format(plural(job["estimate_runs"], "run"))
    low, end, high = job["predicted_end_s_low"], job["predicted_end_s"], job["predicted_end_s_high"]
    most = "" if high is None or end is not None else f"; at the latest in {short(high - now_s)}, its time limit"
    if overrun_s := job["overrun_s"]:
        past = "what earlier runs took" if job["estimate_from"] in ("earlier_runs", "array") else how
        return f"past {past} by {short(overrun_s)}{most}"
    if end is None:
        return f"unknown: none of its earlier runs has finished, and it has no --estimate{most}"
    if low is not None and high is not None and high - low > max(1.0, 0.05 * (high - now_s)):
        return f"in {short(low - now_s)} to {short(high - now_s)} (by {how})"
    return f"in {short(end - now_s)} (by {how})"


def speed_columns(jobs: Sequence[JobView]) -> Sequence[Column[JobView]]:
    """Speed and stages, where any of the jobs has them."""
    both = (
        Column("it/s", speed_of, right=True, least=96),
        Column("stages", stages_of, least=110),
    )
    return [column for column in both if any(map(column.cell, jobs))]


def job_columns(jobs: Sequence[JobView]) -> Sequence[Column[JobView]]:
    """Columns of a list of these jobs; the reason comes last."""
    return (*JOB_COLUMNS[:-1], *speed_columns(jobs), JOB_COLUMNS[-1])


def rate_columns(nodes: Sequence[NodeView], now_s: float, jobs: Sequence[JobView] = ()) -> Sequence[Column[JobView]]:
    """Running jobs with their rates. now_s: by the scheduler's clock. jobs: that are shown."""
    columns: Sequence[Column[JobView]] = (
        Column("id", lambda j: str(j["id"]), right=True),
        Column("name", lambda j: j["name"], gives=True),
        Column("user", lambda j: j["user"], gives=True, least=80),
        Column("state", lambda j: j["state"]),
        Column("where", lambda j: j["where"], gives=True),
        Column("ran", lambda j: short(j["run_s"]), right=True),
        Column("left", lambda j: left_words(j, now_s), right=True, least=70),
        Column("done", progress_of, right=True),
        *speed_columns(jobs),
        Column("GPU %", lambda j: _number(j["usage"].get("gpu_utilization")), right=True),
        Column("GPU GiB", lambda j: gib(j["usage"].get("gpu_memory_mib")), right=True),
        Column("cores", lambda j: _number(j["usage"].get("cpu_cores"), 1), right=True),
        Column("GiB", lambda j: gib(j["usage"].get("memory_mib")), right=True),
        Column("read MiB/s", lambda j: _number(j["usage"].get("read_mib_per_s"), 1), right=True, least=110),
        Column("write MiB/s", lambda j: _number(j["usage"].get("write_mib_per_s"), 1), right=True, least=110),
    )
    return _with_gpus(columns, nodes, {"GPU %", "GPU GiB"})


def _gpu_reason(row: tuple[NodeView, GpuView]) -> str:
    gpu = row[1]
    foreign = [f"{p['name']} ({p['user']}, pid {p['pid']})" for p in gpu["foreign"]]
    return "; ".join(part for part in (gpu["reason"], *foreign) if part)


GPU_COLUMNS: Sequence[Column[tuple[NodeView, GpuView]]] = (
    Column("node", lambda r: r[0]["name"], gives=True),
    Column("no", lambda r: str(r[1]["index"]), right=True),
    Column("model", lambda r: r[1]["model"] or "-", gives=True),
    Column("state", lambda r: r[1]["state"]),
    Column("jobs", lambda r: ",".join(map(str, r[1]["jobs"]))),
    Column("GPU %", lambda r: _number(r[1]["utilization"]), right=True),
    Column("GiB", lambda r: _used_of(r[1]["memory_used_mib"], r[1]["memory_mib"]), right=True),
    Column("°C", lambda r: _number(r[1]["temperature_c"]), right=True, least=80),
    Column("W", lambda r: _number(r[1]["power_w"]), right=True, least=80),
    Column("reason", _gpu_reason, gives=True),
)

NODE_COLUMNS: Sequence[Column[NodeView]] = (
    Column("node", lambda n: n["name"], gives=True),
    Column("state", lambda n: "cut off" if n["cut"] and n["state"] != "down" else n["state"]),
    Column("busy", lambda n: f"{busy_gpus(n)}/{len(n['gpus'])} {'CPU slots' if is_slots(n) else 'GPUs'}"),
    Column("cores", lambda n: _number(n["cpus"]), right=True),
    Column("CPU %", lambda n: _number(n["cpu_percent"]), right=True),
    Column("GiB", lambda n: _used_of(n["memory_used_mib"], n["memory_mib"]), right=True),
    Column("disk free GiB", lambda n: gib(n["disk_free_mib"]), right=True, least=80),
    Column("load", lambda n: _number(n["load"], 1), right=True),
    Column("reason", lambda n: n["reason"] or n["cut"] or n["shut"], gives=True),
)
SUSPENDED_COLUMN: Column[NodeView] = Column("GiB suspended", lambda n: _suspended(n))
"""Of that memory, where jobs lie suspended."""
JOINED_COLUMNS: Sequence[Column[NodeView]] = (
    Column("from", lambda n: f"Slurm {n['engine_job']}".strip() if n["source"] == "slurm" else n["source"]),
    Column("model", lambda n: ", ".join(dict.fromkeys(gpu["model"] for gpu in n["gpus"])), gives=True, least=80),
    Column("ours until", lambda n: ago(n["until_s"]), right=True),
)
"""Where there are nodes that joined."""


def node_columns(nodes: Sequence[NodeView]) -> Sequence[Column[NodeView]]:
    """Those that have something to say."""
    joined: list[Column[NodeView]] = []
    if any(node["source"] != "here" for node in nodes):
        joined = [one for one in JOINED_COLUMNS if one.title != "ours until" or any(n["until_s"] for n in nodes)]
    suspended = [SUSPENDED_COLUMN] if any(node["suspended"] for node in nodes) else []
    return (*NODE_COLUMNS[:2], *joined, *NODE_COLUMNS[2:6], *suspended, *NODE_COLUMNS[6:])  # beside its memory


def _suspended(node: NodeView) -> str:
    lie = node["suspended"]
    jobs = f"{'job' if len(lie) == 1 else 'jobs'} {runs_of([one['job'] for one in lie])}"
    return f"{gib(sum_floats([one['mib'] for one in lie]))} ({jobs})" if lie else "-"


def is_slots(node: NodeView) -> bool:
    """Whether CPU slots stand in for GPUs."""
    return node["kind"] == "cpu"


def busy_gpus(node: NodeView) -> int:
    """GPUs that hold jobs."""
    return sum(bool(gpu["jobs"]) for gpu in node["gpus"])


def troubles(status: StatusView) -> list[str]:
    """The scheduler's own problems: a line each."""
    found = [("policy", status["policy_problem"])]
    found += [
        (name, part["problem"] or ("" if part["ok"] else "not ok"))
        for name, part in (
            ("store", status["store"]),
            ("executor", status["executor"]),
            ("monitor", status["monitor"]),
        )
    ]
    return [f"{name}: {text}" for name, text in found if text]


def gpu_columns(nodes: Sequence[NodeView]) -> Sequence[Column[tuple[NodeView, GpuView]]]:
    """GPUs with their rates."""
    return _with_gpus(GPU_COLUMNS, nodes, {"GPU %", "°C", "W", "GiB", "model"})


def _with_gpus(
    columns: Sequence[Column[Row]], nodes: Sequence[NodeView], of_gpus: Collection[str]
) -> list[Column[Row]]:
    """Without what only GPUs have where there are none but CPU slots."""
    slots = bool(nodes) and all(is_slots(node) for node in nodes)
    return [c for c in columns if not (slots and c.title in of_gpus)]
