"""What the contracts in pyproject.toml don't say: no circle of files, and each package's docstring is true."""

import importlib
import re
from collections import Counter
from pathlib import Path

import grimp
import networkx as nx
import pytest


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Every import, also in functions and under TYPE_CHECKING."""
    return grimp.build_graph("gpuloom", exclude_type_checking_imports=False, cache_dir=None)


def test_no_circle_of_files(graph: grimp.ImportGraph) -> None:
    arrows = nx.DiGraph((one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one))
    circles = [sorted(found) for found in nx.strongly_connected_components(arrows) if len(found) > 1]
    assert circles == []


def test_packages_import_what_their_docstrings_say(graph: grimp.ImportGraph) -> None:
    rooms = {name for name in graph.find_children("gpuloom") if graph.find_children(name)}
    for room in sorted(rooms):
        text = importlib.import_module(room).__doc__ or ""
        said = re.search(r"^May import: (.+)\.$", text, re.MULTILINE)
        assert said, f"{room}/__init__.py doesn't say what the package may import"
        words = said[1].partition(";")[0]
        named = {f"gpuloom.{word}" for word in re.findall(r"\w+", words)} & rooms
        if words.startswith("everything"):
            named = rooms - named
        found = {
            ".".join(other.split(".")[:2])
            for one in {room} | graph.find_descendants(room)
            for other in graph.find_modules_directly_imported_by(one)
        }
        assert (found & rooms) - named - {room} == set(), f"{room} imports more than its docstring says"


def test_no_two_test_files_have_one_name() -> None:
    """pytest takes a file's name for a module's, whatever the folder."""
    names = Counter(
        path.name for path in Path(__file__).resolve().parents[1].rglob("*.py") if path.name != "conftest.py"
    )
    assert [name for name, times in names.items() if times > 1] == []
