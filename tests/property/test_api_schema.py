"""Whatever fits the published schema of the API, or does not: answers are as published, and none is a failure.

GPULOOM_API_EXAMPLES: requests of each operation (`make api-check` takes 200).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from api_client import TOKEN
from gpuloom.server.app import make_app
from gpuloom.server.openapi import TAGS
from live_builders import living, spec

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("GPULOOM_API_EXAMPLES", "10"))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    schemathesis = pytest.importorskip("schemathesis")
    with living(tmp_path_factory.mktemp("api")) as live:
        live.service.stop = lambda *, stop_jobs: None  # type: ignore[method-assign]
        for job in live.submit_all([spec(1)] * 12)[:2]:
            live.end(job)
        app = make_app(live.service, token=TOKEN, default_user="ann", hosts=("testserver",))
        yield schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.parametrize("tag", TAGS)
def test_answers_are_as_published(api: Any, tag: str) -> None:
    operations = [found.ok() for found in api.get_all_operations()]
    operations = [operation for operation in operations if tag in operation.definition.raw["tags"]]
    assert operations
    for operation in operations:
        check(operation)


def check(operation: Any) -> None:
    from schemathesis.core.parameters import ParameterLocation
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:

        @settings(
            max_examples=max(EXAMPLES // 2, 1),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def answered(case: Any) -> None:
            header = case.meta.components.get(ParameterLocation.HEADER)
            # Where headers are what is wrong, a token that is put there would put them right.
            wrong = header is not None and header.mode is GenerationMode.NEGATIVE
            # What has the right form may still be refused for what it says: two fields that don't go together.
            case.call_and_validate(
                headers={} if wrong else {"Authorization": f"Bearer {TOKEN}"},
                excluded_checks=[positive_data_acceptance],
            )

        try:
            answered()
        except Exception as error:
            if type(error).__name__ != "Unsatisfiable":  # there may be nothing that does not fit
                raise
