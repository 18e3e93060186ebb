"""The documentation agrees with the program: policies, parameters, options, links, command lines, examples."""

from __future__ import annotations

import re
import runpy
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from gpuloom.cli.main import cli
from gpuloom.core.cluster import parse_cluster
from gpuloom.facts.inputs import load_cluster
from gpuloom.policies.base import Parameter
from gpuloom.policies.registry import BUILT_IN, create_policy, parse_policy, policy_class

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *(ROOT / "examples").glob("**/*.md")])
POLICIES = (ROOT / "docs" / "reference" / "policies.md").read_text()
SIMULATION = (ROOT / "docs" / "reference" / "simulation.md").read_text()
PLUGIN = tomllib.loads((ROOT / "examples" / "policy_plugin" / "pyproject.toml").read_text())
ADDED = set(PLUGIN["project"]["entry-points"]["gpuloom.policies"])
"""Policies that documents may name because an example adds them."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, *languages: str) -> list[str]:
    """The fenced code blocks of a document in one of these languages."""
    found = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


def command_lines() -> list[tuple[str, list[str]]]:
    """(document, arguments) of every gpuloom command in the documents' shell blocks."""
    found = []
    for path in DOCS:
        for block in blocks(path, "sh", "console", "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"\s(?:&&|\||;|>)\s", line.strip().removeprefix("$ ")):
                    words = shlex.split(part, comments=True)
                    if words and words[0] in {"gpuloom", ".venv/bin/gpuloom"}:
                        found.append((name_of(path), words[1:]))
    return found


def parsed(words: list[str]) -> dict[str, object]:
    """The parameters that a command line sets; fails as the program would."""
    command: click.Command = cli
    context = click.Context(cli)
    words = list(words)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"no command {name!r}"
        command = found
    return command.make_context("gpuloom", words).params


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# -- the program in the documents -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", BUILT_IN)
def test_the_table_of_policies_is_the_registrys(policy: str) -> None:
    traits = policy_class(policy).traits
    shares_with = policy_class(policy).shares_with
    sharing = "yes" if traits.sharing else f"with `{shares_with}`" if shares_with else "no"
    answers = ["yes" if traits.heterogeneity else "no", sharing]
    weights = traits.weights or "ignored"
    row = [f"`{policy}`", traits.summary, traits.knows, traits.preemptive, *answers, weights, traits.paper]
    assert f"| {' | '.join(row)} |" in POLICIES


def section(policy: str) -> str:
    heading = rf"^## (?:`[\w-]+`, )*`{policy}`(?:, `[\w-]+`)*\n"
    match = re.search(rf"{heading}(.*?)(?=^## |\Z)", POLICIES, flags=re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/reference/policies.md has no section on {policy}"
    return match.group(1)


@pytest.mark.parametrize("policy", BUILT_IN)
def test_the_parameters_of_a_policy_are_documented_with_their_defaults(policy: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`|none) \|", section(policy), flags=re.MULTILINE)
    parameters: dict[str, Parameter] = {parameter.name: parameter for parameter in policy_class(policy).parameters}
    # A section may be about several policies, of which one has a parameter more.
    assert [name for name, _ in rows if name in parameters] == list(parameters)
    for name, default in rows:
        if name not in parameters:
            continue
        parameter = parameters[name]
        # As written, the default means what the program takes without it.
        assert (parameter.parse(default) if default else None) == parameter.default


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_every_option_is_documented(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    rows = re.findall(r"^\| (`-[^|]*(?:\\\|[^|]*)*)\|", SIMULATION, flags=re.MULTILINE)
    told = {option for row in rows for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", row)}
    options = {name for p in found.params if isinstance(p, click.Option) for name in p.opts} - {"--help", "-h"}
    assert options <= told
    assert {
        option for option in told if option not in {"--policy", "--policies", "--jobs", "-j", "--save-memory"}
    } <= options


OF_SBATCH = {"--exclusive", "--export", "--gpus-per-node", "--gpus-per-task", "--gres", "--requeue", "--signal"}
OF_SBATCH |= {"--cpus-per-gpu", "--mem", "--mem-per-cpu", "--mem-per-gpu"}
"""Slurm's options that howto/run-jobs.md speaks of."""

OF_LAUNCHERS = {
    "--nnodes",
    "--node-rank",
    "--nproc-per-node",
    "--master-addr",
    "--master-port",
    "--rdzv-endpoint",
    "--max-restarts",
}
OF_LAUNCHERS |= {
    "--rdzv-id",
    "--standalone",
    "--num_machines",
    "--machine_rank",
    "--num_processes",
    "--main_process_ip",
}
OF_LAUNCHERS |= {"--main_process_port", "--multi_gpu", "--use_fsdp", "--deepspeed_multinode_launcher", "--num_gpus"}
OF_LAUNCHERS |= {"--hostfile", "--include", "--exclude", "--autotuning", "--elastic_training", "--no-python"}
"""Options of torchrun, accelerate and deepspeed that howto/write-jobs.md speaks of."""


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_no_option_is_named_that_does_not_exist(path: Path) -> None:
    real = {"--help", "--version"}
    todo: list[click.Command] = [cli]
    while todo:
        command = todo.pop()
        real |= {name for p in command.params if isinstance(p, click.Option) for name in (*p.opts, *p.secondary_opts)}
        if isinstance(command, click.Group):
            context = click.Context(command)
            todo += [c for name in command.list_commands(context) if (c := command.get_command(context, name))]
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"(?<=`)--[a-z][\w-]*", prose))
    others = (OF_SBATCH if "#SBATCH" in prose else set()) | (OF_LAUNCHERS if "torchrun" in prose else set())
    assert named <= real | others


# -- the documents in the program -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("document", "words"), command_lines(), ids=lambda x: x if isinstance(x, str) else " ".join(x))
def test_command_lines_are_right(document: str, words: list[str]) -> None:
    values = parsed(words)
    written = [str(values["policy"])] if values.get("policy") else str(values.get("policies") or "").split(",")
    if values.get("checked"):  # of `policies check`: perhaps a class of a file
        path, _, _ = str(values["checked"]).partition(".py:")
        written = [] if (ROOT / f"{path}.py").is_file() else [str(values["checked"])]
    for policy in filter(None, written):
        if parse_policy(policy)[0] not in ADDED:
            create_policy(policy)
    cluster = values.get("cluster")
    if isinstance(cluster, str):
        load_cluster(str(ROOT / cluster)) if cluster.endswith(".yaml") else parse_cluster(cluster)


def test_the_reference_pages_are_those_of_this_program() -> None:
    """`make reference` writes them."""
    made = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["PAGES"]
    assert set(made) == {"commands.md", "job-fields.md", "job.schema.json"}
    for name, page in made.items():
        assert (ROOT / "docs" / "reference" / name).read_text() == page(), (
            f"{name} is of another version: make reference"
        )


def test_the_terminal_of_the_readme_shows_what_the_program_says() -> None:
    """`make pictures` draws it."""
    drawn = runpy.run_path(str(ROOT / "scripts" / "pictures.py"))["why"]()
    there = (ROOT / "docs" / "pictures" / "why.svg").read_text()
    assert drawn == there, "docs/pictures/why.svg is of another version: make pictures"


def test_the_layout_table_is_what_the_packages_say() -> None:
    """`make reference` writes it."""
    layout = runpy.run_path(str(ROOT / "scripts" / "layout.py"))
    page = layout["PAGE"].read_text()
    assert layout["with_table"](page) == page, "the layout table is of another version: make reference"
    assert all(all(layout["told"](package)) for package in layout["packages"]()), "a package says too little of itself"


def test_every_option_of_every_command_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    todo: list[tuple[str, click.Command]] = [("gpuloom", cli)]
    while todo:
        path, command = todo.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                todo.append((f"{path} {name}", found))
            continue
        text = page.split(f"# {path}\n", 1)[1].split("\n#", 1)[0]
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden and parameter.name != "help":
                # Of several names for one thing, older ones need not stand there.
                assert any(f"`{name}" in text or f", {name}" in text for name in parameter.opts), (path, parameter.opts)


def test_there_are_command_lines() -> None:
    assert {words[0] for _, words in command_lines()} >= set(cli.table)
    assert len(command_lines()) > 20


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.is_relative_to(ROOT), target
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


def test_the_index_leads_to_every_document() -> None:
    """And the README to the index."""
    docs = ROOT / "docs"
    records = (docs / "decisions" / "index.md").read_text().replace("](", "](decisions/")
    index = (docs / "index.md").read_text() + records
    written = {str(path.relative_to(docs)) for path in docs.glob("**/*.md")} - {"index.md"}
    assert {name for name in written if f"({name})" not in index} == set()
    assert "(docs/index.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", ["reference/simulation.md", "howto/extending.md"])
def test_python_blocks_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    Path("jobs.csv").write_text("submit_s,duration_s,gpus\n0,100,1\n5,50,8\n6,10,64\n")
    names: dict[str, object] = {"__name__": "document"}
    found = blocks(ROOT / "docs" / name, "python")
    assert len(found) >= 2
    for block in found:
        exec(compile(block, name, "exec"), names)
    assert float(capsys.readouterr().out.split()[0]) > 0


def test_the_first_screen_is_no_wider_than_pages_are() -> None:
    """That it shows what the program says, tests/docs looks at."""
    screen = blocks(ROOT / "docs" / "start" / "first-simulation.md", "console")[0]
    assert max(map(len, screen.splitlines())) <= 105  # the commands; the table itself:
    assert max(len(line) for line in screen.splitlines() if not line.startswith("$")) <= 100


MOST_WORDS = 40
"""Of a sentence; a colon or a semicolon ends one, too. Most have less than 25."""


@pytest.mark.parametrize("path", DOCS, ids=name_of)
def test_no_sentence_has_to_be_read_twice(path: Path) -> None:
    """Tables, code and formulas are left out; what is in backticks, and the target of a link, counts as one word."""
    text = re.sub(r"^ *```.*?^ *```|<!--.*?-->", "\n\n", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]+`", "X", re.sub(r"\]\([^)]*\)", "]", text))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.))", text):
        if block.lstrip("\n").startswith(("|", "    ")):
            continue
        for sentence in re.split(r"(?<=[.:;!?])[)*\"]*\s", " ".join(block.split())):
            assert len(sentence.split()) <= MOST_WORDS, sentence
