"""What the API server refuses of an object that is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fake_kubernetes.errors import Refused, bad, invalid, refused
from fake_kubernetes.kinds import Kind

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NAME_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_POD_FREE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_body(kind: Kind, body: Any, namespace: str, name: str | None) -> dict[str, Any]:
    """The object that was sent, with its own kind and version. name: of the path; None: it is created."""
    if not isinstance(body, dict):
        raise bad(f"the object provided is unrecognized (must be of type {kind.kind})")
    said = body.get("apiVersion"), body.get("kind")
    if said[1] not in (None, kind.kind):
        raise bad(
            f'{said[1]} in version "{str(said[0]).rpartition("/")[2]}" cannot be handled as a {kind.kind}: converting '
            f"({str(said[0]).rpartition('/')[2]}.{said[1]}) to ({kind.group or 'core'}.{kind.kind}): unknown conversion"
        )
    found = {**body, "apiVersion": kind.api_version, "kind": kind.kind}
    about = found["metadata"] = dict(found.get("metadata") or {})
    if kind.namespaced:
        if about.get("namespace") not in (None, "", namespace):
            raise bad("the namespace of the provided object does not match the namespace sent on the request")
        about["namespace"] = namespace
    if name is not None and about.get("name") not in (None, name):
        raise bad(f"the name of the object ({about['name']}) does not match the name on the URL ({name})")
    for field in ("labels", "annotations"):
        for value in (about.get(field) or {}).values():
            if not isinstance(value, str):
                what = "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else "bool"
                raise bad(
                    f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: json: cannot '
                    f"unmarshal {what} into Go struct field ObjectMeta.metadata.{field} of type string"
                )
    return found


def check_new(kind: Kind, item: Mapping[str, Any]) -> None:
    """Raises Refused: it can't be created so."""
    about = item["metadata"]
    name, group = about.get("name") or "", kind.group
    causes: list[tuple[str, str, str]] = []
    if not name:
        text = "Required value: name or generateName is required"
        raise invalid(kind.kind, group, "", [("metadata.name", "FieldValueRequired", text)])
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        told = []
        if not _SUBDOMAIN.fullmatch(name):
            told.append(_SUBDOMAIN_TEXT)
        if len(name) > 253:
            told.append("must be no more than 253 bytes")
        causes += [("metadata.name", "FieldValueInvalid", f'Invalid value: "{name}": {text}') for text in told]
    causes += _labels(about)
    if kind.kind == "Pod" and not (item.get("spec") or {}).get("containers"):
        causes.append(("spec.containers", "FieldValueRequired", "Required value"))
    if causes:
        raise invalid(kind.kind, group, name, causes)


def _labels(about: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    found = []
    for key, value in (about.get("labels") or {}).items():
        text = f'Invalid value: "{key}": {_NAME_TEXT}'
        if not _LABEL_NAME.fullmatch(key.rpartition("/")[2]):
            found.append(("metadata.labels", "FieldValueInvalid", text))
        if len(value) > 63:
            found.append(
                ("metadata.labels", "FieldValueInvalid", f'Invalid value: "{value}": must be no more than 63 bytes')
            )
    return found


def check_change(kind: Kind, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raises Refused: it can't be changed so."""
    name, group = before["metadata"]["name"], kind.group
    old, new = before["metadata"], after["metadata"]
    if new.get("uid") not in (None, old["uid"]):
        text = f'Invalid value: "{new["uid"]}": field is immutable'
        raise invalid(kind.kind, group, name, [("metadata.uid", "FieldValueInvalid", text)])
    if causes := _labels(new):
        raise invalid(kind.kind, group, name, causes)
    if "deletionTimestamp" in old:
        added = [one for one in new.get("finalizers") or () if one not in (old.get("finalizers") or ())]
        if added:
            text = (
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
                f"[]string{{{', '.join(map(quoted, added))}}}"
            )
            raise invalid(kind.kind, group, name, [("metadata.finalizers", "FieldValueForbidden", text)])
    if kind.kind == "ConfigMap" and before.get("immutable") and before.get("data") != after.get("data"):
        text = "Forbidden: field is immutable when `immutable` is set"
        raise invalid(kind.kind, group, name, [("data", "FieldValueForbidden", text)])
    if kind.kind == "Pod":
        _pod_change(before, after)


def quoted(text: str) -> str:
    return f'"{text}"'


def _pod_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    name, old, new = before["metadata"]["name"], before.get("spec") or {}, after.get("spec") or {}
    gates = [one["name"] for one in old.get("schedulingGates") or ()]
    added = [one["name"] for one in new.get("schedulingGates") or () if one["name"] not in gates]
    if added:
        text = "Forbidden: only deletion is allowed, but found new scheduling gate " + repr(added[0]).replace("'", "'")
        raise invalid("Pod", "", name, [("spec.schedulingGates", "FieldValueForbidden", text)])
    free = {"schedulingGates", "tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds"}
    if gates:
        free |= {"affinity", "nodeSelector"}
    if _without(old, free) != _without(new, free):
        raise invalid("Pod", "", name, [("spec", "FieldValueForbidden", f"Forbidden: {_POD_FREE}")])


def _without(spec: Mapping[str, Any], fields: set[str]) -> dict[str, Any]:
    found = {key: value for key, value in spec.items() if key not in fields}
    for place in ("containers", "initContainers"):
        if place in found:
            found[place] = [{**one, "image": None} for one in found[place]]
    return found


def forbidden_namespace(name: str, plural: str, namespace: str) -> Refused:
    text = (
        f'{plural} "{name}" is forbidden: unable to create new content in namespace {namespace} because it is being '
        "terminated"
    )
    return refused(403, text, "Forbidden", {"name": name, "kind": plural})
