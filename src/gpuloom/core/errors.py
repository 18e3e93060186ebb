"""The error tree. A message says what is wrong, where, and what would be right."""

from __future__ import annotations


class GpuloomError(Exception):
    """Root of every error that gpuloom raises on purpose.

    `exit_code` is what the command line returns for it: 1 the work failed, 2 bad usage or input.
    """

    exit_code = 1


class InputError(GpuloomError):
    """A user's input (a flag, a file, a row) is wrong."""

    exit_code = 2


class ClusterError(InputError):
    """A cluster description that can't be read."""


class PolicyError(InputError):
    """An unknown policy id or a bad parameter of a policy."""


class ImpossibleJobError(InputError):
    """A job that can never be placed on this cluster."""


class NotFoundError(InputError):
    """No such job, node or policy."""


class ConflictError(GpuloomError):
    """The job's state does not allow it; the message says which state, and what can be done."""


class MissingDependencyError(InputError):
    """An optional part of gpuloom is needed but not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed: pip install 'gpuloom[{extra}]'")


class TraceError(InputError):
    """A trace that can't be read. Names the file and, where it applies, line, column and value."""

    def __init__(
        self,
        reason: str,
        *,
        file: str = "",
        line: int | None = None,
        column: str | None = None,
    ) -> None:
        self.reason, self.file, self.line, self.column = reason, file, line, column
        where = file
        if line is not None:
            where += f":{line}"
        if column is not None:
            where += f", column {column!r}"
        super().__init__(f"{where}: {reason}" if where else reason)


class EmptyTableError(TraceError):
    """A table without a row, where one is needed."""


class PlanError(GpuloomError):
    """A decision broke a rule of the cluster (a GPU given twice, half a gang, …): a bug in the policy."""


class InvalidTransition(GpuloomError):  # noqa: N818 - the name the design gives it
    """A transition that a job's state does not allow. The message carries the job's story."""
