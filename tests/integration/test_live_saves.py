"""Real jobs that make way: what counts as saved, and what is said where nothing proves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real_scheduler import Real, real
from until import until

pytestmark = pytest.mark.slow

LEAVES = "echo up > up.$GPULOOM_JOB_ID; while :; do sleep 0.05; done"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Real]:
    with real(tmp_path) as found:
        yield found


def test_exit_0_is_no_proof_and_a_checkpoint_or_a_report_is(live: Real) -> None:
    live.up("--slots", "3")
    report = '{"step": 8, "steps": 10, "saved_step": 8}'
    jobs = [
        group[0]
        for group in live.client.submit(
            [
                live.shell(f"trap 'exit 0' TERM; {LEAVES}", checkpoint="none/*.ckpt"),
                live.shell(f"trap 'echo x > out.ckpt; exit 0' TERM; {LEAVES}", checkpoint="*.ckpt"),
                live.shell(f"trap 'echo \"$R\" > $GPULOOM_PROGRESS_FILE; exit 0' TERM; {LEAVES}", env={"R": report}),
            ]
        )
    ]
    until(lambda: all((live.files / f"up.{job}").exists() for job in jobs), "their traps")
    live.in_state("running", jobs)
    node = live.client.nodes()[0]["name"]
    live.client.set_node(node, "draining")
    live.in_state("queued", jobs)

    def first(job: int) -> dict[str, Any]:
        return dict(live.client.show(job)["attempts"][0])

    none, file, said = map(first, jobs)
    assert (none["saved"], none["saved_by"]) == (False, None)
    assert "without proof that it saved" in none["message"]
    assert (file["saved"], file["saved_by"], file["message"]) == (True, "checkpoint", "")
    assert (said["saved"], said["saved_by"], said["message"]) == (True, "saved_step", "")
    live.client.cancel(jobs)
    live.down()
    live.check()
