"""The example of a third party's reader works as its README says."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gpuloom.core.errors import TraceError
from gpuloom.traces import read_trace, registry

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "trace_reader_plugin"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch):
    """The example, registered as its pyproject.toml says."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"][registry.GROUP].items()
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint(name, value, group)])
    registry._plugins.cache_clear()
    yield
    registry._plugins.cache_clear()


def sample() -> str:
    """The rows that the README shows."""
    block = (EXAMPLE / "README.md").read_text().split("```\nbooking", 1)[1].split("```", 1)[0]
    return "booking" + block


@pytest.mark.usefixtures("plugin")
def test_the_readme_sample_is_read(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(sample())
    result = read_trace(file)
    w = result.workload
    assert (result.format, w.job_ids) == ("bookings", ("101", "102"))
    assert (w.submit_s.tolist(), w.duration_s.tolist(), w.gpus.tolist()) == ([0, 300], [3600, 600], [2, 1])
    assert [w.user[1], w.group[1]] == ["ben", "speech"]
    assert any("1 job left out, which used no GPU" in note for note in w.notes)


@pytest.mark.usefixtures("plugin")
def test_its_bad_rows_are_named_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(sample().replace(";10;", ";ten;"))
    with pytest.raises(TraceError, match="minutes is 'ten'") as caught:
        read_trace(file)
    assert (caught.value.line, caught.value.column) == (3, "minutes")
