"""Shared set-up: where the real traces are, and how hypothesis runs."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The matrices here are tiny: a second thread of BLAS only takes a core from other tests, by waiting for work in a loop.
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is there

sys.path.insert(0, str(Path(__file__).parent))
from made_once import MuriRuns, common_folder
from slurm_kit import RealSlurm, real_slurm
from tiers import NO_TRAINING, examples
from turns import in_turns

# Under nohup, or in a script's background, Ctrl-C is ignored, and programs that we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Health checks go by the machine's load and by what is drawn, and say nothing of the program.
UNHEALTHY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("default", deadline=None, suppress_health_check=UNHEALTHY, max_examples=examples(100))
# CI judges a change, so it tries the same examples each time; everywhere else new ones are looked for.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")

DATA = Path(os.environ.get("GPULOOM_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with real traces; skips where it is missing."""
    if not DATA.is_dir():
        pytest.skip(
            f"no public traces in {DATA}: docs/reference/data.md says where to get them (GPULOOM_DATA names the folder)"
        )
    return DATA


@pytest.fixture(scope="session")
def muri(data: Path, tmp_path_factory: pytest.TempPathFactory) -> MuriRuns:
    """Runs of Muri's traces: `muri(trace, policy)`."""
    return MuriRuns(data, common_folder(tmp_path_factory))


@pytest.fixture(scope="session")
def slurm_there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    """A Slurm of four nodes, for all tests of this process; skips where it is not installed."""
    with real_slurm(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture
def slurm(slurm_there: RealSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealSlurm]:
    """The same, with all nodes free, found by the commands that a test calls; what it leaves there is ended."""
    for name, value in slurm_there.env.items():
        monkeypatch.setenv(name, value)
    yield slurm_there
    slurm_there.clear()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several workers each gets an equal share of what takes long, and begins with it."""
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    if workers > 1:
        items[:] = in_turns(items, workers)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Tests and their modules stay to the end: looking for garbage among them takes half a second each time. Nor is
    what tests keep looked through as often as Python would."""
    gc.freeze()
    gc.set_threshold(2000, 10, 50)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """In CI only tests of GPUs and real clusters, and examples that say what they need, may skip, and tests of training
    frameworks where those are not installed (CI runs them by a command of their own): others fail."""
    allowed = {"gpu", "real_cluster", "not_everywhere"}
    if sys.version_info >= (3, 13):
        allowed.add("ecos")  # it has no wheels for this Python, so that gpuloom[all] leaves it out
    if (
        os.environ.get("CI") == "true"
        and call.excinfo is not None
        and call.excinfo.errisinstance(pytest.skip.Exception)
        and not allowed & {mark.name for mark in item.iter_markers()}
        and (reason := str(call.excinfo.value)) != NO_TRAINING
    ):
        try:
            raise AssertionError(f"skipped in CI: {reason}")
        except AssertionError as error:  # raised, as a report needs a traceback
            call.excinfo = pytest.ExceptionInfo.from_exception(error)


@pytest.fixture(scope="session", autouse=True)
def _no_library_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What whoever runs the tests keeps in their own profile library plays no part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPULOOM_HOME", str(tmp_path_factory.getbasetemp() / "no-home"))
        yield


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    """A test that leaves a handler of a signal would change how the process of other tests ends."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    left = {number: now for number in numbers if (now := signal.getsignal(number)) != before[number]}
    for number in left:
        signal.signal(number, before[number])
    assert not left, f"handlers of signals left behind: {left}"
