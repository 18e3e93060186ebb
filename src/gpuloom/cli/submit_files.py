"""job.yaml: jobs and the line of each field, so that errors can name their place."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gpuloom.bounded.text import cut, shown
from gpuloom.bounded.yaml_text import MOST_BYTES, Loader, RefusedError
from gpuloom.cli.job_options import absolute, read_env_file
from gpuloom.core.errors import InputError
from gpuloom.core.words import did_you_mean
from gpuloom.live.submission.spec import JobSpec, first, problems

Lines = dict[tuple[object, ...], int]


def read_jobs(
    file: str, flags: Mapping[str, Any], env: Mapping[str, str], shell: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The jobs of a file, checked.

    Args:
        file: a path, or - for standard input.
        flags: fields that go before those of the file. env: variables that do. shell: variables that go after.

    Raises:
        InputError: names file, line and field, and what would be right.
    """
    source = "<stdin>" if file == "-" else file
    base = Path.cwd() if file == "-" else Path(file).absolute().parent
    found = []
    for node, loader in _nodes(_text(file), source):
        lines: Lines = {}
        _mark(node, (), lines, source)
        try:
            data = loader.construct_document(node)
            written = _env_as_written(node, loader)
        except yaml.MarkedYAMLError as error:
            raise _no_yaml(error, source) from None
        line = node.start_mark.line + 1
        if not isinstance(data, dict):
            raise InputError(
                f"{source}:{line}: a job is fields and values (command: [python, train.py]), not {_kind(data)}"
            )
        found.append(_job(data, written, lines, source, line, base, flags, env, shell))
    if not found:
        raise InputError(f"{source}: holds no job; the shortest one is: command: [python, train.py]")
    return found


def _text(file: str) -> str:
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise InputError(f"{file}: longer than {MOST_BYTES // 2**20} MiB: write several files")
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None


def _nodes(text: str, source: str) -> list[tuple[yaml.Node, Loader]]:
    """A node for each job, lists taken apart."""
    found: list[tuple[yaml.Node, Loader]] = []
    try:
        loader = Loader(text)
        while loader.check_node():
            node: Any = loader.get_node()
            parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
            found += [(part, loader) for part in parts if not _is_null(part)]
    except yaml.MarkedYAMLError as error:
        raise _no_yaml(error, source) from None
    except yaml.YAMLError as error:
        raise InputError(f"{source}: not YAML: {cut(' '.join(str(error).split()), 200)}") from None
    return found


def _no_yaml(error: yaml.MarkedYAMLError, source: str) -> InputError:
    mark = error.problem_mark or error.context_mark
    where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
    kind = "" if isinstance(error, RefusedError) else "not YAML: "
    return InputError(f"{where}: {kind}{cut(str(error.problem or error.context), 200)}")


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _mark(node: yaml.Node, path: tuple[object, ...], lines: Lines, source: str) -> None:
    """Note on which line each field stands; refuse a field that stands twice, of which YAML would take the last."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"{source}:{key.start_mark.line + 1}: a field's name must be plain text")
            there = (*path, key.value)
            if there in lines:
                here = f"{source}:{key.start_mark.line + 1}"
                raise InputError(f"{here}: {cut(key.value, 60)} is on line {lines[there]} already: write it once")
            lines[there] = key.start_mark.line + 1
            if len(path) < 4:  # no field is deeper
                _mark(value, there, lines, source)
    elif isinstance(node, yaml.SequenceNode) and len(path) < 4:
        for index, value in enumerate(node.value):
            _mark(value, (*path, index), lines, source)


def _env_as_written(node: yaml.Node, loader: Loader) -> dict[str, Any] | None:
    """The variables under `env` as they are written: OMP_NUM_THREADS: 4 is the text 4, and yes is yes."""
    if not isinstance(node, yaml.MappingNode):
        return None
    for key, value in node.value:
        if key.value == "env" and isinstance(value, yaml.MappingNode):
            return {
                k.value: v.value
                if isinstance(v, yaml.ScalarNode) and not _is_null(v)
                else loader.construct_object(v, deep=True)
                for k, v in value.value
            }
    return None


def _job(
    data: dict[str, Any],
    written: Mapping[str, Any] | None,
    lines: Lines,
    source: str,
    line: int,
    base: Path,
    flags: Mapping[str, Any],
    env: Mapping[str, str],
    shell: Mapping[str, str],
) -> dict[str, Any]:
    if "class" in data:
        if "share_class" in data:
            where = f"{source}:{lines.get(('class',), line)}"
            raise InputError(f"{where}: class and share_class are the same: write one of them")
        data["share_class"] = data.pop("class")
        lines["share_class",] = lines.get(("class",), line)
    files = data.pop("env_file", [])
    files = [files] if isinstance(files, str) else files
    if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
        raise InputError(
            f"{source}:{lines.get(('env_file',), line)}: env_file is {shown(files)}: must be a file, or a list of them"
        )
    if written is not None:
        data["env"] = dict(written)
    spec = {"workdir": os.getcwd(), **absolute(data, base), **flags}
    if given := [name for name in ("venv", "conda", "container") if flags.get(name)]:
        # A flag says what to run in, instead of what the file says.
        spec = {
            name: value for name, value in spec.items() if name not in ("venv", "conda", "container") or name in given
        }
    try:
        JobSpec.model_validate(spec)
    except ValidationError as error:
        raise InputError("; ".join(first(_problems_of(error, lines, source, line, flags)))) from None
    of_files: dict[str, str] = {}
    for name in files:
        of_files.update(read_env_file(base / Path(name).expanduser()))
    return {**spec, "env": {**shell, **of_files, **(data.get("env") or {}), **env}}


def _problems_of(error: ValidationError, lines: Lines, source: str, line: int, flags: Mapping[str, Any]) -> list[str]:
    found = []
    for entry, sentence in zip(error.errors(include_url=False), problems(error), strict=True):
        where = tuple(part for part in entry["loc"] if not str(part).startswith("function-"))
        while where and where not in lines:
            where = where[:-1]
        if entry["type"] == "extra_forbidden":
            name = str(entry["loc"][-1])
            if hint := did_you_mean(name, [*JobSpec.model_fields, "env_file", "class"]):
                sentence = f"unknown field {name!r}{hint}"
            else:
                sentence += ", env_file"
        elif entry["loc"] == ("command",) and isinstance(entry.get("input"), str):
            sentence = f"command is one text: write program and arguments as a list, such as {entry['input'].split()}"
        elif entry["loc"][:1] == ("env",):
            sentence += " (quote values that are not text)"
        if entry["loc"] == ("share_class",) and ("class",) in lines:
            sentence = sentence.replace("share_class", "class", 1)  # as it is written
        by_flag = bool(entry["loc"]) and entry["loc"][0] in flags
        found.append(sentence if by_flag else f"{source}:{lines.get(where, line)}: {sentence}")
    return found


def _kind(value: object) -> str:
    return {str: "text", list: "a list", bool: "a yes or no", int: "a number", float: "a number"}.get(
        type(value), "this"
    )
