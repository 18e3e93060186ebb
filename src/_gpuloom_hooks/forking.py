"""One import of PyTorch for all ranks of a machine: rank 0 imports it before its script begins, and forks the others.

Importing PyTorch costs seconds of a processor, in every rank. executors/direct.py starts rank 0
with a socket (`SOCKET`), on which it says:

    "no"     it is as any other process; direct.py starts the other ranks itself. So it does where nothing comes.
    "begun"  it imports now.
    "ready"  it has, and waits for a line of JSON: by local rank the variables in which that rank differs from this one.

Then each forked rank says a line "LOCAL_RANK PID" before it does anything else, and goes on as Python goes on after
its start: with its script, from the first line, in a session of its own. It is direct.py's child, as that one takes in
orphans.

What is imported is the head of the script itself: its first statements, as long as they are imports of the standard
library, torch or numpy. So nothing that the script does before could have changed what the import finds. And
`torch._dynamo`, which PyTorch's optimizers and DDP import when they are first used, if nothing in the script can mean
to have a say in it. CUDA is not begun by importing; where a library has done so, the child sees it and ends, and is
started as ever.
"""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SOCKET = "GPULOOM_FORKS"
"""The number of the socket; "off", set by the user: every rank imports by itself."""
LIBRARIES = frozenset({"torch", "numpy"})
"""Beside the standard library; not those that look at the rank when they are imported, as Lightning does."""
PLAIN = LIBRARIES | {"gpuloom", "torchvision", "torchaudio", "tqdm", "yaml", "PIL", "scipy", "pandas", "matplotlib"}
"""Who imports nothing else has no library that sets PyTorch's variables itself."""
OPTIMIZES = re.compile(r"\boptim\b|DistributedDataParallel|\bDDP\b")
HAS_A_SAY = re.compile(r"TORCH|_dynamo|_inductor")
"""Such a script may mean to set how `torch._dynamo` is, by variables or directly."""


def serve() -> None:
    """Import and fork, if direct.py has asked for it. Returns in every rank; what goes wrong is no rank's affair."""
    number = os.environ.pop(SOCKET, "off")
    with suppress(OSError):  # direct.py goes on without it
        if number.isdigit():
            with socket.socket(fileno=int(number)) as link:
                link.set_inheritable(False)
                _serve(link)


def _serve(link: socket.socket) -> None:
    head, dynamo = planned()
    if head is not None:
        link.sendall(b"begun\n")
    if head is None or not imported(head, dynamo):
        link.sendall(b"no\n")
        return
    link.sendall(b"ready\n")
    asked = link.makefile("r", encoding="utf-8").readline()
    if asked:
        forked(link, json.loads(asked))


def planned() -> tuple[ast.Module | None, bool]:
    """The script's head, if PyTorch is imported in it, and whether `torch._dynamo` is as well."""
    script = sys.argv[0] if sys.version_info >= (3, 10) and getattr(sys, "argv", None) else ""
    if not script.endswith(".py"):
        return None, False
    try:
        with open(script, "rb") as file:
            source = file.read()
        tree = ast.parse(source)
        beside = os.listdir(_folder(script))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None, False  # it will be told of by Python itself
    own = {name.partition(".")[0] for name in beside}
    known = LIBRARIES | sys.stdlib_module_names
    if not own.isdisjoint(known):
        return None, False  # a file of the script's own goes before a library's
    head = []  # type: list[ast.stmt]
    for statement in tree.body:
        names = list(_imports(statement))
        constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not constant and (not names or not known.issuperset(names) or "__main__" in names):
            break
        head.append(statement)
    if not any("torch" in _imports(statement) for statement in head):
        return None, False
    text = source.decode("utf-8", "replace")
    every = {name for node in ast.walk(tree) for name in _imports(node)}
    dynamo = (known | PLAIN).issuperset(every) and OPTIMIZES.search(text) and not HAS_A_SAY.search(text)
    return ast.Module(head, []), bool(dynamo)


def _folder(script: str) -> str:
    """What Python puts first on the path of the script."""
    return os.path.dirname(os.path.realpath(script))


def _imports(node: ast.AST) -> Iterator[str]:
    """The packages that a statement imports; "" for one beside the script."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom):
        yield "" if node.level else (node.module or "").partition(".")[0]


def imported(head: ast.Module, dynamo: bool) -> bool:
    """Import; whether all went well and no thread was begun, as only the one that forks lives on in a child."""
    first = [] if getattr(sys.flags, "safe_path", False) else [_folder(sys.argv[0])]
    sys.path[:0] = first  # as it is about to be
    try:
        exec(compile(head, sys.argv[0], "exec"), {"__name__": "gpuloom_head"})  # noqa: S102 - imports alone
        if dynamo:
            import_module("torch._dynamo")
    except (Exception, SystemExit):
        return False  # the script meets it again, and tells of it
    finally:
        del sys.path[: len(first)]
    return len(os.listdir("/proc/self/task")) == 1


def forked(link: socket.socket, differs: dict[str, dict[str, str]]) -> None:
    """Fork a process for each of these local ranks, through one that ends, so that they are nobody's here."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    helper = os.fork()
    if helper:
        os.waitpid(helper, 0)
        return
    parent = os.getpid()
    for local_rank, own in differs.items():
        if not os.fork():
            _become(link, local_rank, own, parent)
            return
    os._exit(0)


def _become(link: socket.socket, local_rank: str, own: dict[str, str], parent: int) -> None:
    """This is that rank from now on. parent: which is about to end."""
    try:
        torch = sys.modules["torch"]
        for device in ("cuda", "xpu"):
            begun = getattr(getattr(torch, device, None), "_is_in_bad_fork", None)
            if begun is not None and begun():
                os._exit(0)
        os.setsid()
        os.environ.update(own)
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()  # each process has a start of its own; the others do so by themselves
        link.sendall(b"%s %d\n" % (local_rank.encode(), os.getpid()))
        while os.getppid() == parent:  # a script that looks after its parent sees the one that lasts
            time.sleep(0.001)
    except BaseException:
        os._exit(0)  # it is started as ever
