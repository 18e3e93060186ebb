"""What is taken of submissions: what is remembered of one request holds for the next only on the same machines."""

from __future__ import annotations

import pytest

from gpuloom.core.book import Book
from gpuloom.core.errors import ImpossibleJobError
from gpuloom.core.job import DeviceKind, Gpu, NodeRecord
from gpuloom.live.submission.admission import Admission
from gpuloom.live.submission.spec import job_spec


def node(gpus: int) -> NodeRecord:
    return NodeRecord("a", tuple(Gpu(n, f"GPU-{n}", "V100") for n in range(gpus)), kind=DeviceKind.GPU)


def test_what_can_never_be_placed_may_be_once_the_machine_has_more_gpus() -> None:
    book = Book()
    book.nodes["a"] = node(2)
    admission = Admission(book, lambda job: None)
    four = job_spec({"command": ["train"], "gpus": 4})
    for _ in range(2):
        with pytest.raises(ImpossibleJobError, match="job 'train' can never start"):
            admission.checks().spec(four, "job 'train'")
    book.nodes["a"] = node(4)
    admission.checks().spec(four, "job 'train'")
    book.nodes["a"] = node(3)
    with pytest.raises(ImpossibleJobError):
        admission.checks().spec(four, "job 'train'")
