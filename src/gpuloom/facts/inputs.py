"""Inputs that come as files: clusters and samples of policies."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gpuloom.core.cluster import Cluster, cluster_from_mapping, parse_cluster
from gpuloom.core.errors import ClusterError, PolicyError
from gpuloom.facts.gpus import hand_in_facts
from gpuloom.files.unpack import GZIP, UnpackedTooLargeError, gunzip
from gpuloom.policies.base import Parameter, Policy
from gpuloom.policies.registry import create_policy, parse_policy, policy_class

MOST_BYTES = 512 * 2**20
"""Largest size, unpacked, of a file that a policy parameter names."""


def load_cluster(text: str) -> Cluster:
    """A cluster from its short form ('4x8:V100,16x4:K80') or from a YAML file (docs/reference/clusters.md).

    Raises:
        ClusterError: neither, or the file is wrong (names the entry and key).
    """
    path = Path(text)
    if path.suffix.lower() not in {".yaml", ".yml"}:
        try:
            is_file = path.is_file()
        except OSError:  # longer than a file's name may be: a long short form
            is_file = False
        if not is_file:
            return parse_cluster(text)
    from gpuloom.bounded.yaml_text import load_yaml

    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterError(f"cluster file {text}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ClusterError(f"cluster file {text} is not YAML: it is not UTF-8 text (byte {error.start})") from error
    except ValueError as error:
        raise ClusterError(f"cluster file {text}: {error}") from error
    return cluster_from_mapping(data, source=text)


def load_policy(text: str, **defaults: Any) -> Policy:
    """A policy from its written form; parameters that name files are read.

    Raises:
        PolicyError: unknown id or parameter, bad value, unreadable file (names the line).
    """
    policy = create_policy(text, **defaults)
    asked: Policy | None = policy
    while asked is not None:
        for parameter in asked.parameters:
            value = asked.values[parameter.name]
            if parameter.names_file and isinstance(value, str):
                asked.values[parameter.name] = _of_file(asked.id, parameter, Path(value))
        hand_in_facts(asked)
        asked = asked.inner
    return policy


def with_whole_paths(text: str, folder: Path) -> str:
    """The written form of a policy for a reader with another working directory: names of files are absolute, from this
    folder on.

    Raises:
        PolicyError: no such policy, or it can't be read.
    """
    policy_id, values = parse_policy(text)
    named = {parameter.name for parameter in policy_class(policy_id).parameters if parameter.names_file}
    parts = text.partition(":")[2].split(";")
    for part in parts:
        name, _, value = (word.strip() for word in part.partition("="))
        if name in named & values.keys() and value and not Path(value).is_absolute():
            text = text.replace(part, f"{name}={folder / Path(value).expanduser()}")
    return text


def _of_file(policy_id: str, parameter: Parameter, path: Path) -> Any:
    """The value of a parameter that names this file."""
    where = f"policy {policy_id!r}: {parameter.name}={path}"
    try:
        raw = path.read_bytes()
        text = (gunzip(raw, MOST_BYTES) if raw.startswith(GZIP) else raw).decode("utf-8")
    except FileNotFoundError as error:
        raise PolicyError(f"{where}: no such file") from error
    except OSError as error:
        raise PolicyError(f"{where}: {error.strerror or error}") from error
    except (UnicodeDecodeError, EOFError, UnpackedTooLargeError, zlib.error) as error:
        raise PolicyError(f"{where}: {error} (expected: {parameter.help})") from error
    if parameter.content is None:
        return _numbers(where, text)
    try:
        return parameter.content(_yaml(where, text) if parameter.yaml else text)
    except json.JSONDecodeError as error:
        raise PolicyError(f"{where}: is not JSON ({error}); expected: {parameter.help}") from error
    except ValueError as error:
        raise PolicyError(f"{where}: {error}; expected: {parameter.help}") from error


def _yaml(where: str, text: str) -> Any:
    from gpuloom.bounded.yaml_text import load_yaml

    try:
        found = load_yaml(text)
    except ValueError as error:
        raise PolicyError(f"{where}: {error}") from error
    if found is None:
        raise PolicyError(f"{where}: is empty; write keys and values, at top level or all below 'elastic:'")
    return found


def _numbers(where: str, text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number above 0 a line; a first line that is a heading is passed over."""
    numbers = []
    for line, entry in enumerate(text.splitlines(), start=1):
        word = entry.strip()
        if not word:
            continue
        try:
            value = float(word)
        except ValueError:
            if line == 1:
                continue
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise PolicyError(f"{where}:{line}: {word!r} is not a number above 0")
        numbers.append(value)
    if not numbers:
        raise PolicyError(f"{where}: holds no numbers")
    return np.array(numbers)
