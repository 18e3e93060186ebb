"""`gpuloom show`: all that is known about a job."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuloom.cli.job_groups import beside
from gpuloom.cli.jobs import ENDED
from gpuloom.cli.live import (
    JOBS_HELP,
    ago,
    connect_or_name_files,
    dollars,
    live_options,
    one_number,
    plain,
    say_json,
    short,
)
from gpuloom.cli.live_tables import (
    REASONS,
    Column,
    predicted_end,
    progress_of,
    short_reason,
    show_table,
    speed_of,
)
from gpuloom.core.replicas import resize_words
from gpuloom.core.spec import Per, Spec, spec_of
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.core.replicas import Replicas
    from gpuloom.live.views.job_answers import (
        AttemptView,
        KeptView,
        MemberView,
        ResizeView,
        ShowView,
        SizeView,
        SpeedView,
        SuspensionView,
    )


@click.command(epilog=JOBS_HELP)
@click.argument("job", metavar="JOB")
@live_options
def show(job: str, as_json: bool, home: Path | None) -> None:
    """Show all that is known about a job: what it asked for, its attempts and how each ended, its log.

    \b
    Examples:
      gpuloom show 12
      gpuloom show 12_3 --json
    """
    with connect_or_name_files(home, job) as client:
        found = client.show(one_number(client, job))
    if as_json:
        say_json(found)
        return
    _show(found)


WAYS = {
    "freeze": "it is frozen where it is, and keeps its GPU memory",
    "suspend": "it is suspended, with its GPU memory in main memory",
    "checkpoint": "it has its notice and ends",
    "never": "never: it runs to its end",
}


def _makes_way(found: ShowView) -> list[tuple[str, str]]:
    """What happens when it must make way, unless that is what happens to any job."""
    known = found["makes_way"]
    if known is None or (known["way"] == "checkpoint" and not known["why"]):
        return []
    return [("if preempted", WAYS[known["way"]] + (f", as {known['why']}" if known["why"] else ""))]


def _show(found: ShowView) -> None:
    job, spec = found["job"], spec_of(found["spec"])
    words = short_reason(job)
    lines = [
        ("job", f"{job['id']}  {job['name']}  of {job['user']}"),
        ("state", job["state"] + (f": {words}" if words else "")),
        ("command", shlex.join(job["command"])),
        *_launcher(found, spec),
        ("in", spec.workdir or "-"),
        ("asks for", _requests(spec)),
        ("where", job["where"] or "-"),
        *beside(found, job["id"]),
        *_makes_way(found),
        ("submitted", ago(job["submitted_s"])),
        ("waited, ran", f"{short(job['waited_s'])}, {short(job['run_s'])}"),
    ]
    if job["jct_s"] is not None:
        lines.append(("ended", f"{ago(job['ended_s'])}, {short(job['jct_s'])} after submission"))
    elif expected := predicted_end(job, time.time()):
        lines.append(("predicted end", expected))
    if progress := progress_of(job):
        speed = speed_of(job)
        lines.append(("done", f"{progress}, {speed} it/s" if speed else progress))
    if found["cost_usd"]:
        lines.append(("cost", f"{dollars(found['cost_usd'])} at on-demand prices (gpuloom gpus)"))
    if job["after"]:
        lines.append(
            ("after", ", ".join(f"{n} ({'ended well' if how == 'ok' else 'ended'})" for n, how in job["after"]))
        )
    if job["state"] in ENDED and job["exit_code"] is not None:  # before, it is that of the last attempt
        lines.append(("exit code", str(job["exit_code"])))
    if (need := found["gpu_memory"]) is not None and need["source"] == "measured":
        runs = f"in {plural(need['runs'], 'earlier run')}" if need["runs"] else "in this job"
        lines.append(("GPU memory", f"{need['mib']:,} MiB on each GPU, measured {runs}"))
    if spec.env:
        lines.append(("environment", f"{plural(len(spec.env), 'variable')} (--json names them; values are not shown)"))
    for link in found["hooks"]["links"] if found["hooks"] is not None else ():
        lines.append((TRACKERS[link["tracker"]], link["where"]))
    lines.append(("log", found["log"] or "-"))
    for title, text in lines:
        click.echo(f"{title + ':':<15}{plain(text)}")
    if found["sizes"]:
        click.echo()
        show_table(SIZE_COLUMNS, found["sizes"])
    if found["speeds"]:
        click.echo()
        show_table(SPEED_COLUMNS, found["speeds"])
    if found["attempts"]:
        click.echo()
        show_table(ELASTIC_ATTEMPT_COLUMNS if spec.elastic else ATTEMPT_COLUMNS, found["attempts"])
    if found["resizes"]:
        click.echo()
        show_table(RESIZE_COLUMNS, found["resizes"])
    if found["suspensions"]:
        click.echo()
        show_table(SUSPENSION_COLUMNS, found["suspensions"])
    _stages(found)
    members = [(a, member) for a in found["attempts"] if len(a["members"]) > 1 for member in a["members"]]
    if members:
        click.echo()
        show_table(MEMBER_COLUMNS, members)


def _stages(found: ShowView) -> None:
    """Where its time goes, as hooks measured it."""
    hooks = found["hooks"]
    if hooks is None or hooks["measured"] is None:
        return
    from gpuloom.cli.stage_table import PART_COLUMNS, measured_lines, part_rows
    from gpuloom.core.measured import Measured
    from gpuloom.fleet.codec import of_plain

    measured = of_plain(Measured, dict(hooks["measured"]))
    click.echo()
    show_table(PART_COLUMNS, part_rows(measured))
    for line in measured_lines(measured):
        click.echo(line)


def _launcher(found: ShowView, spec: Spec) -> list[tuple[str, str]]:
    """What starts its processes."""
    launcher = found["launcher"]
    if launcher is None:
        return []
    if launcher == "pods":
        return [("made by", "others, in the cluster: its pods are theirs")]
    servers = f", {plural(spec.ps, 'parameter server')}" if spec.ps else ""
    asked = spec.launcher is not None or spec.per is Per.GPU
    return [("launcher", f"{launcher}{servers}{'' if asked else ' (recognised by the command)'}")]


def _requests(spec: Spec) -> str:
    parts = [plural(spec.gpus, "GPU") if spec.replicas is None else _sizes(spec.replicas, spec.gpus)]
    if spec.gpu_types:
        parts.append(f"of {' or '.join(spec.gpu_types)}")
    if spec.gpu_memory:
        parts.append(f"{spec.gpu_memory:,} MiB on each")
    if spec.replica_cpus:
        parts.append(f"{spec.replica_cpus:g} cores for each")
    if spec.replica_memory:
        parts.append(f"{spec.replica_memory:,} MiB for each")
    if spec.cpus:
        parts.append(f"{spec.cpus:g} cores")
    if spec.memory:
        parts.append(f"{spec.memory:,} MiB")
    if klass := spec.sharing_class:
        parts.append(f"class {klass}")
        if spec.kernel_profile:
            parts.append(f"kernel profile {spec.kernel_profile}")
    if spec.time_limit:
        parts.append(f"at most {short(spec.time_limit)}")
    if spec.suspend_limit:
        parts.append(f"suspended for at most {short(spec.suspend_limit)}")
    if spec.priority:
        parts.append(f"priority {spec.priority}")
    return ", ".join(parts)


def _sizes(replicas: Replicas, asked: int) -> str:
    each = f" of {plural(replicas.gpus, 'GPU')}" if replicas.gpus > 1 else ""
    return f"{replicas.least} to {replicas.most} replicas{each} ({replicas.of(asked)} where jobs are not resized)"


def _member_outcome(attempt: AttemptView, member: MemberView) -> str:
    if member["reason"] is None:
        if attempt["ended_s"] is not None:
            return ""
        again = f", begun anew {plural(member['restarts'], 'time')}: {member['restarted']}"
        return attempt["state"] + (again if member["restarts"] else "")
    how = REASONS.get(member["reason"], member["reason"])
    if member["signal"]:
        return f"{how}, signal {member['signal']}"
    code = member["exit_code"]
    return ", ".join(part for part in (how, member["message"] or (f"exit code {code}" if code else "")) if part)


MEMBER_COLUMNS: Sequence[Column[tuple[AttemptView, MemberView]]] = (
    Column("attempt", lambda row: str(row[0]["number"]), right=True),
    Column("member", lambda row: str(row[1]["rank"]), right=True),
    Column("node", lambda row: row[1]["node"]),
    Column("GPUs", lambda row: ",".join(map(str, row[1]["gpus"]))),
    Column("pid", lambda row: str(row[1]["pid"] or "-"), right=True),
    Column("how it ended", lambda row: _member_outcome(*row), gives=True),
)


_WHENCE: Mapping[str, str] = {
    "measured": "measured in {runs}",
    "earlier_runs": "by the running time of {runs}",
    "profiles": "by its profile there",
    "given": "as its user says",
    "facts": "estimated from the GPU models' facts",
    "usual": "estimated: what jobs usually gain",
    "unknown": "unknown: as fast as the slowest",
}


def _whence(speed: SpeedView | SizeView) -> str:
    return _WHENCE[speed["source"]].format(runs=plural(speed["runs"], "run"))


TRACKERS = {"wandb": "W&B", "mlflow": "MLflow", "tensorboard": "TensorBoard"}

SIZE_COLUMNS: Sequence[Column[SizeView]] = (
    Column("replicas", lambda s: str(s["replicas"]), right=True),
    Column("GPUs", lambda s: str(s["gpus"]), right=True),
    Column("speed", lambda s: f"{s['speed']:.3g}", right=True),
    Column("it/s", lambda s: "-" if s["it_per_s"] is None else f"{s['it_per_s']:.4g}", right=True),
    Column("known", _whence, gives=True),
)

SPEED_COLUMNS: Sequence[Column[SpeedView]] = (
    Column("GPU model", lambda s: s["gpu_model"]),
    Column("speed", lambda s: f"{s['speed']:.3g}", right=True),
    Column("it/s", lambda s: "-" if s["it_per_s"] is None else f"{s['it_per_s']:.4g}", right=True),
    Column("$/h", lambda s: "-" if s["price_usd_per_hour"] is None else f"{s['price_usd_per_hour']:.2f}", right=True),
    Column("known", _whence, gives=True),
)


_KEEPERS: Mapping[str, str] = {"script": "by the script", "framework": "by {}", "hook": "by the hook for {}"}


def _kept(kept: KeptView) -> str:
    """What of an attempt is kept: up to which step, who saved it, and when."""
    who = _KEEPERS[kept["by"]].format(kept["framework"] or "its framework")
    when = "" if kept["at_s"] is None else f", {ago(kept['at_s'])}"
    return f"saved up to step {kept['step']:g} {who}{when}"


def _outcome(attempt: AttemptView) -> str:
    if attempt["ended_s"] is None:
        return attempt["state"]
    reason = attempt["reason"] or ""
    parts = [REASONS.get(reason, reason), attempt["message"]]
    if attempt["signal"]:
        parts.append(f"signal {attempt['signal']}")
    elif attempt["exit_code"] and not attempt["message"]:  # it says so
        parts.append(f"exit code {attempt['exit_code']}")
    if attempt["kept"] is not None and (attempt["saved"] or attempt["reason"] != "finished"):
        parts.append(_kept(attempt["kept"]))
    elif attempt["saved"]:
        parts.append("checkpoint saved")
    return ", ".join(part for part in parts if part)


RESIZE_COLUMNS: Sequence[Column[ResizeView]] = (
    Column("attempt", lambda r: str(r["attempt"]), right=True),
    Column("replicas", lambda r: f"{r['from_replicas']} → {r['to_replicas']}"),
    Column("resized", lambda r: ago(r["at_s"])),
    Column("stood still", lambda r: "-" if r["cost_s"] is None else f"{r['cost_s']:.1f}s", right=True),
    Column("steps lost", lambda r: "-" if r["lost_steps"] is None else f"{r['lost_steps']:g}", right=True),
    Column("why", lambda r: resize_words(r["why"], r["jobs"]), gives=True),
)


def _remarks(time: SuspensionView) -> str:
    if time["why_not"]:
        return f"not suspended: {time['why_not']}"
    return f"told to end: {time['why_ended']}" if time["why_ended"] else ""


SUSPENSION_COLUMNS: Sequence[Column[SuspensionView]] = (
    Column("GPU memory moved", lambda s: "to try it" if s["rehearsal"] else "to make way"),
    Column("when", lambda s: ago(s["at_s"])),
    Column("GPU MiB", lambda s: "-" if s["mib"] is None else f"{s['mib']:,.0f}", right=True),
    Column("out", lambda s: "-" if s["out_s"] is None else f"{s['out_s']:.1f}s", right=True),
    Column("went on", lambda s: "-" if s["back_at_s"] is None else ago(s["back_at_s"])),
    Column("back", lambda s: "-" if s["in_s"] is None else f"{s['in_s']:.1f}s", right=True),
    Column("remarks", _remarks, gives=True),
)


ATTEMPT_COLUMNS: Sequence[Column[AttemptView]] = (
    Column("attempt", lambda a: str(a["number"]), right=True),
    Column("where", lambda a: a["where"], gives=True),
    Column("started", lambda a: ago(a["started_s"])),
    Column("held GPUs", lambda a: short(a["held_s"]) if a["ended_s"] is not None else "", right=True),
    Column("peak MiB", lambda a: f"{a['peak_memory_mib']:,.0f}" if a["peak_memory_mib"] else "-", right=True),
    Column("how it ended", _outcome, gives=True),
)


ELASTIC_ATTEMPT_COLUMNS: Sequence[Column[AttemptView]] = (
    ATTEMPT_COLUMNS[0],
    Column("replicas", lambda a: str(a["replicas"]), right=True),
    *ATTEMPT_COLUMNS[1:],
)
