"""JSON answers that can always be encoded: values without a JSON form (infinity, lone surrogates) are replaced."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import JSONResponse


def encoded(content: Any) -> bytes:
    """JSON in UTF-8. Numbers that are not finite become null; halves of surrogate pairs stay escaped."""
    try:
        return _dumps(content).encode()
    except ValueError:
        # Both are rare (a file name that is no UTF-8, a forecast without end), so that only they pay for it.
        return json.dumps(_finite(content), allow_nan=False, separators=(",", ":")).encode()


def _dumps(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


class JsonResponse(JSONResponse):
    """An answer in JSON."""

    def render(self, content: Any) -> bytes:
        return encoded(content)
