"""GPU models matter live: CPU slots of two pretended models, on nodes of their own, and jobs that obey their speeds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from real_node import RealNode
from real_scheduler import Real, real
from until import until

MODELS = ["K80", "V100"]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Real]:
    with real(tmp_path, slots=1) as found:
        yield found


@pytest.fixture
def nodes(head: Real, tmp_path: Path) -> Iterator[dict[str, RealNode]]:
    """A node with a K80 and one with a V100, which have not joined yet."""
    with ExitStack() as undo:
        head.up("--policy", "hlas:upgrade=no;min_seconds_between_moves=0", "--interval", "0s")
        found = {model: RealNode(head, tmp_path, name=model.lower(), slots=1, model=model) for model in MODELS}
        for node in found.values():
            undo.callback(node.close)
        yield found


def submit(head: Real, job: dict[str, Any], **fields: Any) -> int:
    ((number,),) = head.client.submit([{"gpu_types": MODELS, "estimate": 3600, **job, **fields}])
    return int(number)


def runs_on(head: Real, job: int, node: str) -> None:
    def there() -> bool:
        (view,) = head.client.jobs(ids=[job])
        return view["state"] == "running" and view["where"] == f"{node}:0"

    until(there, f"job {job} runs on {node}")


@pytest.mark.slow
def test_the_swap_of_the_specs_example_happens(head: Real, nodes: dict[str, RealNode]) -> None:
    """gain = 1 · (10 - 1) + 1 · (1 - 2) = 8 > 0: the job on the K80 moves to the V100, and the new one takes its place.
    With 2 and 10 in place of 10 and 2 the gain is -8, and the new one takes the V100."""
    nodes["K80"].join()
    first = submit(head, head.waiting(), speeds={"V100": 10, "K80": 1})
    runs_on(head, first, "k80")
    nodes["V100"].join()
    second = submit(head, head.waiting(), speeds={"V100": 2, "K80": 1})
    runs_on(head, first, "v100")
    runs_on(head, second, "k80")
    third = submit(head, head.waiting(), speeds={"V100": 10, "K80": 1})
    head.end(first, attempt=2)
    runs_on(head, third, "v100")
    runs_on(head, second, "k80")
    assert [one["where"] for one in head.client.show(first)["attempts"]] == ["k80:0", "v100:0"]


STEPS = """
import os, time
from gpuloom.training import job
pause_s = {"k80": 0.2, "v100": 0.05}[os.environ["GPULOOM_NODE_NAMES"]]
for step in range(1, 21):
    time.sleep(pause_s)
    job.progress(step, 20)
"""


@pytest.mark.slow
def test_speeds_are_learnt_from_what_runs_report(head: Real, nodes: dict[str, RealNode]) -> None:
    for node in nodes.values():
        node.join()
    script = head.files / "train.py"
    script.write_text(STEPS)
    command = {"command": [sys.executable, "train.py"], "workdir": str(head.files)}
    before = [submit(head, command, gpu_types=[model]) for model in MODELS]
    head.in_state("finished", before)
    found = {one["gpu_model"]: one for one in head.client.show(before[0])["speeds"]}
    assert {model: found[model]["source"] for model in MODELS} == {"K80": "measured", "V100": "measured"}
    rates = [found[model]["it_per_s"] for model in MODELS]
    assert rates[0] * 1.5 < rates[1]
    assert found["V100"]["speed"] == pytest.approx(rates[1] / rates[0])
    text = head.run("show", str(before[0])).stdout
    assert "measured in 1 run" in text
    # One that may run anywhere goes where its runs were faster, though its user says the opposite.
    last = submit(head, command, speeds={"K80": 9, "V100": 1})
    head.in_state("finished", [last])
    (attempt,) = head.client.show(last)["attempts"]
    assert (attempt["where"], attempt["gpu_model"]) == ("v100:0", "V100")
    trace = head.run("history", "export", "-").stdout.splitlines()
    (header,) = [line for line in trace if line.startswith("job_id,")]
    assert "speed:K80,speed:V100" in header
