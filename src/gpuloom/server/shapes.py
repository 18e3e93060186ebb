"""Models of answers, made from their types (`live/views/answers.py`): for the OpenAPI document and for checks."""

from __future__ import annotations

import inspect
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, create_model

from gpuloom.live.views.job_answers import Fits

_SUFFIXED = frozenset({"JobView", "WhyView"})
"""Names in the document that end so."""


def name_of(answer: type) -> str:
    """Its name in the document."""
    name = answer.__name__
    return name if name in _SUFFIXED else name.removesuffix("View")


def ref(name: str) -> dict[str, Any]:
    """A schema of the document by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


@cache
def model_of(answer: type) -> type[BaseModel]:
    """A model with the fields of a TypedDict, and no others."""
    fields: dict[str, Any] = {}
    for name, kind in get_type_hints(answer, include_extras=True).items():
        optional = get_origin(kind) is NotRequired or not getattr(answer, "__total__", True)
        kind = get_args(kind)[0] if get_origin(kind) is NotRequired else kind
        kind, *told = get_args(kind) if get_origin(kind) is Annotated else (kind,)
        description = next((text for text in told if isinstance(text, str)), None)
        for fits in (one for one in told if isinstance(one, Fits)):
            kind = Annotated[kind, WithJsonSchema({"allOf": [ref(fits.schema)]})]
        fields[name] = (_kind_of(kind), Field(None if optional else ..., description=description))
    closed = ConfigDict(extra="forbid")
    return create_model(name_of(answer), __config__=closed, __doc__=inspect.cleandoc(answer.__doc__ or ""), **fields)


def _kind_of(kind: Any) -> Any:
    """A type with models in place of the TypedDicts within it."""
    if is_typeddict(kind):
        return model_of(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        return reduce(or_, map(_kind_of, parts))
    if origin in (Annotated, Literal) or not parts:
        return kind
    return origin[tuple(map(_kind_of, parts))]
