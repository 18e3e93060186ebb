"""`gpuloom observe` as people use it: against a cluster that answers over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("lightkube", reason="lightkube is not installed: pip install 'gpuloom[kubernetes]'")

from fake_kubernetes.cluster import Cluster, pod
from fake_kubernetes.server import FakeApi
from until import until

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]


class Shell:
    """The command line with a home and a kubeconfig of its own."""

    def __init__(self, folder: Path, api: FakeApi) -> None:
        self.env = {**os.environ, "GPULOOM_HOME": str(folder / "home"), "KUBECONFIG": str(folder / "kubeconfig")}
        self.env.pop("KUBERNETES_SERVICE_HOST", None)
        self.folder = folder
        api.kubeconfig(folder / "kubeconfig")

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [*PROGRAM, *words], capture_output=True, text=True, env=self.env, cwd=self.folder, timeout=120, check=False
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout if code == 0 else done.stderr


@pytest.fixture
def there(tmp_path: Path) -> Iterator[tuple[Cluster, Shell]]:
    with FakeApi() as api:
        shell = Shell(tmp_path, api)
        yield Cluster(api), shell
        shell("down") if (tmp_path / "home" / "server.json").exists() else None


def test_a_cluster_is_watched_from_the_command_line(there: tuple[Cluster, Shell]) -> None:
    cluster, shell = there
    cluster.at_s = time.time() - 7200.0
    cluster.add_node("n1")
    for index in range(4):
        cluster.create(pod(f"train-{index}", 8))
        cluster.at_s += 10.0
        cluster.bind(f"train-{index}", "n1")
        cluster.at_s += 600.0
        cluster.finish(f"train-{index}")
    cluster.create(pod("train-5", 8))
    cluster.bind("train-5", "n1")
    cluster.create(pod("train-6", 8))
    cluster.unschedulable("train-6", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu")
    ready = json.loads(shell("observe", "--detach", "--json", "--port", "0", "--context", "fake"))
    assert ready["gpus"]["total"] == 8
    assert "is running here already" in shell("observe", "--detach")
    told = shell("why", "train-6")
    assert "1 Insufficient nvidia.com/gpu" in told
    assert "4 earlier runs of train" in told
    waits = json.loads(shell("why", "train-6", "--json"))
    assert waits["state"] == "queued"
    assert waits["start_s_median"] is not None
    assert json.loads(shell("show", "train-5-worker-0", "--json"))["job"]["name"] == "train-5"
    assert "no job is called 'other'" in shell("why", "other", code=2)
    assert "only observe" in shell("cancel", "1", code=1)
    assert "only observe" in shell("submit", "--", "true", code=1)
    assert "kubectl logs" in shell("logs", "train-5", code=1)
    checked = json.loads(shell("why", "--check", "--json"))
    assert checked["checked"] == 6
    cluster.at_s = None
    cluster.finish("train-5")
    until(lambda: "finished" in shell("show", "train-5"))
    shell("history", "export", "past.csv")
    rows = json.loads(shell("compare", "past.csv", "--policies", "fifo,srtf", "--json", "-"))
    assert [row["jobs"] for row in rows] == [5, 5, 5]  # as it ran, too
    shell("down")
    shell.env["GPULOOM_HOME"] += "-own"
    shell("up", "--slots", "1", "--detach", "--port", "0")
    assert "does not observe fake" in shell("observe", "--detach", code=1)
    shell("down")
    shell.env["GPULOOM_HOME"] = shell.env["GPULOOM_HOME"].removesuffix("-own")
    assert "has what was seen of cluster" in shell("up", "--slots", "1", "--detach", code=2)


def test_what_is_wrong_with_a_kubeconfig_is_said(there: tuple[Cluster, Shell], tmp_path: Path) -> None:
    _, shell = there
    assert "has no context 'other' (there are: fake)" in shell("observe", "--context", "other", code=2)
    assert "nowhere not found" in shell("observe", "--kubeconfig", "nowhere", code=2)
    (tmp_path / "odd").write_text("[1, 2")
    assert "odd can't be read as a kubeconfig" in shell("observe", "--kubeconfig", "odd", code=2)
    (tmp_path / "odd").write_text("clusters: []\ncontexts: []\n")
    assert "no context is set" in shell("observe", "--kubeconfig", "odd", code=2)
    about = json.loads((tmp_path / "kubeconfig").read_text())
    about["contexts"][0]["context"]["cluster"] = "gone"
    (tmp_path / "odd").write_text(json.dumps(about))
    assert "context 'fake' names 'gone', which is not there" in shell("observe", "--kubeconfig", "odd", code=2)
    about["contexts"][0]["context"] = {"cluster": "fake"}
    (tmp_path / "odd").write_text(json.dumps(about))
    assert "names no user" in shell("observe", "--kubeconfig", "odd", code=2)


def test_a_server_that_is_not_there(there: tuple[Cluster, Shell], tmp_path: Path) -> None:
    _, shell = there
    about = json.loads((tmp_path / "kubeconfig").read_text())
    about["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "kubeconfig").write_text(json.dumps(about))
    assert "GET /api/v1/nodes" in shell("observe", code=1)
    assert "GET /api/v1/nodes" in shell("observe", "--detach", code=1)
