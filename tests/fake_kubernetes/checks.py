"""What the API server refuses of an object that is written."""

from __future__ import annotations

import json
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
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
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
    if kind.kind == "Pod":
        causes += _mounts("spec", item.get("spec") or {})
    if (kind.group, kind.kind) == ("batch", "Job"):
        causes += _mounts("spec.template.spec", ((item.get("spec") or {}).get("template") or {}).get("spec") or {})
    if causes:
        raise invalid(kind.kind, group, name, causes)
    spec = item.get("spec") or {}
    if kind.kind == "Pod" and "preemptionPolicy" in spec and not spec.get("priorityClassName"):
        text = (
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
            "priority admission controller computed PreemptLowerPriority from the given PriorityClass name"
        )
        raise refused(403, f'pods "{name}" is forbidden: {text}', "Forbidden", {"name": name, "kind": "pods"})


def _mounts(place: str, spec: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What containers mount must be a volume of the pod, and be mounted once at a path."""
    found = []
    volumes = [one["name"] for one in spec.get("volumes") or ()]
    for number, name in enumerate(volumes):
        if name in volumes[:number]:
            text = f'Duplicate value: "{name}"'
            found.append((f"{place}.volumes[{number}].name", "FieldValueDuplicate", text))
    for at, container in enumerate(spec.get("containers") or ()):
        paths: list[str] = []
        for number, mount in enumerate(container.get("volumeMounts") or ()):
            where = f"{place}.containers[{at}].volumeMounts[{number}]"
            if mount["name"] not in volumes:
                found.append((f"{where}.name", "FieldValueNotFound", f'Not found: "{mount["name"]}"'))
            if mount["mountPath"] in paths:
                text = f'Invalid value: "{mount["mountPath"]}": must be unique'
                found.append((f"{where}.mountPath", "FieldValueInvalid", text))
            paths.append(mount["mountPath"])
    return found


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
    if (kind.group, kind.kind) == ("batch", "Job"):
        _job_change(name, before.get("spec") or {}, after.get("spec") or {})


def quoted(text: str) -> str:
    return f'"{text}"'


def _pod_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    name, old, new = before["metadata"]["name"], before.get("spec") or {}, after.get("spec") or {}
    gates = [one["name"] for one in old.get("schedulingGates") or ()]
    for number, one in enumerate(new.get("schedulingGates") or ()):
        if one["name"] not in gates:
            text = f"Forbidden: only deletion is allowed, but found new scheduling gate '{one['name']}'"
            raise invalid("Pod", "", name, [(f"spec.schedulingGates[{number}].name", "FieldValueForbidden", text)])
    free = {"schedulingGates", "tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds"}
    if gates:
        free |= {"affinity", "nodeSelector"}
        _placing_change(name, old, new)
    if _without(old, free) != _without(new, free):
        raise invalid("Pod", "", name, [("spec", "FieldValueForbidden", f"Forbidden: {_POD_FREE}")])


_TEMPLATE_FREE = frozenset(("nodeSelector", "affinity", "tolerations", "schedulingGates"))
"""What may change of a template while its Job is suspended, beside the resources of its containers."""


def _job_change(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Messages about templates are shorter here than the real ones, which print all of it."""
    immutable = "field is immutable"
    for field in ("completionMode", "managedBy", "backoffLimitPerIndex", "selector"):
        if old.get(field) != new.get(field):
            shown = f'"{new[field]}"' if isinstance(new.get(field), str) else _json(new.get(field))
            cause = (f"spec.{field}", "FieldValueInvalid", f"Invalid value: {shown}: {immutable}")
            raise invalid("Job", "batch", name, [cause])
    wanted = new.get("completions")
    if old.get("completions") != wanted and wanted != new.get("parallelism"):
        text = f"Invalid value: {wanted}: can only be modified in tandem with spec.parallelism"
        raise invalid("Job", "batch", name, [("spec.completions", "FieldValueInvalid", text)])
    was, now = old["template"], new["template"]
    free = _TEMPLATE_FREE if old.get("suspend") else frozenset[str]()
    about = "metadata" if free else ""

    def fixed(template: Mapping[str, Any]) -> dict[str, Any]:
        spec = {key: value for key, value in template["spec"].items() if key not in free}
        if free:
            spec["containers"] = [{**one, "resources": None} for one in spec["containers"]]
        return {key: value for key, value in template.items() if key != about} | {"spec": spec}

    if fixed(was) != fixed(now):
        text = f"Invalid value: {_json(now)}: {immutable}"
        raise invalid("Job", "batch", name, [("spec.template", "FieldValueInvalid", text)])


def _placing_change(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """What a gated pod asks of nodes may only become narrower."""
    was, now = old.get("nodeSelector") or {}, new.get("nodeSelector")
    if any((now or {}).get(key) != value for key, value in was.items()):
        text = (
            f"Invalid value: {_json(now)}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        )
        raise invalid("Pod", "", name, [("spec.nodeSelector", "FieldValueInvalid", text)])
    one, other = old.get("affinity") or {}, new.get("affinity") or {}
    place = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    terms, after = _terms(one), _terms(other)
    if terms and len(terms) != len(after):
        shown = _json([_go(term) for term in after] or None)
        text = f"Invalid value: {shown}: no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        raise invalid("Pod", "", name, [(place, "FieldValueInvalid", text)])
    for number, (term, wanted) in enumerate(zip(terms, after, strict=False)):
        for field in ("matchExpressions", "matchFields"):
            if any(each not in (wanted.get(field) or ()) for each in term.get(field) or ()):
                text = f"Invalid value: {_json(_go(wanted))}: only additions are allowed (no mutations or deletions)"
                raise invalid("Pod", "", name, [(f"{place}[{number}]", "FieldValueInvalid", text)])
    if any(one.get(field) != other.get(field) for field in ("podAffinity", "podAntiAffinity")):
        raise invalid("Pod", "", name, [("spec", "FieldValueForbidden", f"Forbidden: {_POD_FREE}")])


def _terms(affinity: Mapping[str, Any]) -> list[Any]:
    node = affinity.get("nodeAffinity") or {}
    return list((node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ())


def _go(term: Mapping[str, Any]) -> dict[str, Any]:
    """A term as the server's own types print it."""

    def each(field: str) -> list[Any] | None:
        found = [
            {"Key": one["key"], "Operator": one["operator"], "Values": one.get("values")}
            for one in term.get(field) or ()
        ]
        return found or None

    return {"MatchExpressions": each("matchExpressions"), "MatchFields": each("matchFields")}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


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
