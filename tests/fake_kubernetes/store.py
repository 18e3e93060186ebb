"""The objects of the fake API server: their versions, what happened to them, and who waits to hear of it."""

from __future__ import annotations

import base64
import json
import marshal
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fake_kubernetes.checks import check_change, check_new, forbidden_namespace
from fake_kubernetes.errors import (
    Refused,
    bad,
    details_of,
    exists,
    invalid,
    modified,
    not_found,
    precondition,
    refused,
    too_large,
)
from fake_kubernetes.kinds import BY_PATH, Kind

Item = dict[str, Any]
JOB_NAME = "volcano.sh/job-name"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def copied(item: Item) -> Item:
    """All of it anew. Objects are what JSON knows, and ten times as fast copied so as by `deepcopy`."""
    found: Item = marshal.loads(marshal.dumps(item))
    return found


@dataclass(frozen=True)
class Happened:
    """A change. before, after: None: it did not exist."""

    version: int
    kind: Kind
    before: Item | None
    after: Item | None


class Store:
    """All objects. Every call may be made from any thread."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self.changed = threading.Condition()
        self.version = 1000
        self.oldest = 0
        """Watches and lists of an older version are refused."""
        self.items: dict[Kind, dict[tuple[str, str], Item]] = {kind: {} for kind in BY_PATH.values()}
        self.history: list[Happened] = []
        self.of_job: dict[tuple[str, str], dict[str, None]] = {}
        """Names of pods by namespace and name of the Volcano Job on their label."""

    def stamp(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now()))

    # -- reading --------------------------------------------------------------------------------------------------

    def get(self, kind: Kind, namespace: str, name: str) -> Item:
        with self.changed:
            found = self.items[kind].get((namespace, name))
            if found is None:
                raise not_found(name, kind.plural, kind.group)
            return found

    def at(self, kind: Kind, namespace: str, version: int) -> list[Item]:
        """The objects as they were at a version, in the order of their names."""
        with self.changed:
            then = dict(self.items[kind])
            for one in reversed(self.history):
                if one.version <= version:
                    break
                if one.kind is kind:
                    there = one.after or one.before
                    key = _key(there)
                    if one.before is None:
                        then.pop(key, None)
                    else:
                        then[key] = one.before
        return [item for key, item in sorted(then.items()) if namespace in ("", key[0])]

    def since(self, kind: Kind, version: int) -> list[Happened]:
        """What has happened after a version. With the lock held."""
        found = []
        for one in reversed(self.history):
            if one.version <= version:
                break
            if one.kind is kind:
                found.append(one)
        return found[::-1]

    def compact(self, version: int | None = None) -> None:
        """Forget what happened up to a version (by default all)."""
        with self.changed:
            self.oldest = self.version if version is None else version
            self.history = [one for one in self.history if one.version > self.oldest]

    # -- writing --------------------------------------------------------------------------------------------------

    def create(self, kind: Kind, item: Item, *, dry: bool = False) -> Item:
        with self.changed:
            item = copied(item)
            about, namespace = item["metadata"], item["metadata"].get("namespace", "")
            if about.get("resourceVersion"):
                raise refused(500, "resourceVersion should not be set on objects to be created")
            if not about.get("name") and about.get("generateName"):
                about["name"] = about["generateName"][:58] + "".join(random.choices(_LETTERS, k=5))
            name = str(about.get("name") or "")
            if kind.namespaced:
                there = self.items[BY_PATH["", "v1", "namespaces"]].get(("", namespace))
                if there is None:
                    raise not_found(namespace, "namespaces", "")
                if (there.get("status") or {}).get("phase") == "Terminating":
                    raise forbidden_namespace(name, kind.plural, namespace)
            check_new(kind, item)
            if (namespace, name) in self.items[kind]:
                raise exists(name, kind.plural, kind.group)
            about |= {"uid": str(uuid.uuid4()), "creationTimestamp": self.stamp()}
            about.pop("deletionTimestamp", None)
            if kind.generation:
                about["generation"] = 1
            if kind.subresources and "status" in kind.subresources and kind.kind != "Node":
                item.pop("status", None)
            _DEFAULTS.get((kind.group, kind.kind), _none)(item)
            if dry:
                return item
            return self._put(kind, None, item)

    def update(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Callable[[Item], Item],
        *,
        status: bool = False,
        dry: bool = False,
        check: bool = True,
    ) -> Item:
        """Change an object. change: from what it is to what it is to be. status: only its status, else all but that."""
        with self.changed:
            before = self.get(kind, namespace, name)
            after = change(copied(before))
            about, was = after.setdefault("metadata", {}), before["metadata"]
            if about.get("name") not in (None, name):
                raise bad(f"the name of the object ({about['name']}) does not match the name on the URL ({name})")
            wanted = about.get("resourceVersion")
            if wanted not in (None, "", was["resourceVersion"]):
                raise modified(name, kind.plural, kind.group)
            if not wanted and kind.kind == "Lease":
                text = "Invalid value: 0: must be specified for an update"
                raise invalid(kind.kind, kind.group, name, [("metadata.resourceVersion", "FieldValueInvalid", text)])
            if status:
                after = {**copied(before), "status": after.get("status") or {}}
                about = after["metadata"]
            elif "status" in kind.subresources:
                after.pop("status", None)
                if "status" in before:
                    after["status"] = copied(before["status"])
            if check:
                check_change(kind, before, after)
            for field in ("uid", "creationTimestamp", "resourceVersion", "namespace", "generation"):
                if field in was:
                    about[field] = was[field]
            for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
                about.pop(field, None)
                if field in was:
                    about[field] = was[field]
            if after == before:
                return before
            for part, field in (("metadata", "finalizers"), ("spec", "schedulingGates")):
                if (after.get(part) or {}).get(field) == []:  # what is empty is left out
                    after[part] = {name: value for name, value in after[part].items() if name != field}
                    about = after["metadata"]
            if kind.generation and after.get("spec") != before.get("spec"):
                about["generation"] = int(was.get("generation", 1)) + 1
            if dry:
                return after
            written = self._put(kind, before, after)
            return self._gone_if_free(kind, written)

    def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        dry: bool = False,
    ) -> tuple[int, Item]:
        """(status, answer)."""
        options = options or {}
        policy = options.get("propagationPolicy")
        if policy not in (None, "Foreground", "Background", "Orphan"):
            text = f'Unsupported value: "{policy}": supported values: "Foreground", "Background", "Orphan", "nil"'
            raise invalid("DeleteOptions", "meta.k8s.io", "", [("propagationPolicy", "FieldValueNotSupported", text)])
        with self.changed:
            before = self.get(kind, namespace, name)
            for field, called in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                wanted, found = (options.get("preconditions") or {}).get(field), before["metadata"][field]
                if wanted not in (None, found):
                    raise precondition(name, kind.group, kind.kind, called, wanted, found)
            after = copied(before)
            about = after["metadata"]
            grace = 0
            if kind.kind == "Pod":
                spec, phase = after.get("spec") or {}, (after.get("status") or {}).get("phase")
                grace = int(options.get("gracePeriodSeconds", spec.get("terminationGracePeriodSeconds", 30)))
                if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
                    grace = 0
            if policy == "Foreground" and "foregroundDeletion" not in (about.get("finalizers") or ()):
                about["finalizers"] = [*(about.get("finalizers") or ()), "foregroundDeletion"]
            lasts = about.get("deletionGracePeriodSeconds")
            if lasts is None or grace < lasts:
                when = time.gmtime(self.now() + grace)
                about["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", when)
                about["deletionGracePeriodSeconds"] = grace
                if kind.generation and lasts is None:
                    about["generation"] = int(about.get("generation", 1)) + 1
            if dry:
                return 200, after
            if (kind.group, kind.kind) == ("batch", "Job") and policy in (None, "Orphan"):
                self._orphan(str(about["uid"]))
            if kind.kind != "Pod" and not about.get("finalizers"):
                self._drop(kind, after)
                details = {**details_of(name, kind.group, kind.plural), "uid": about["uid"]}
                success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
                return 200, {**success, "details": details}
            if after != before:
                after = self._put(kind, before, after)
            return 200, self._gone_if_free(kind, after)

    def _orphan(self, uid: str) -> None:
        """Its pods run on, and are nobody's."""
        pods = BY_PATH["", "v1", "pods"]
        for pod in list(self.items[pods].values()):
            owners = pod["metadata"].get("ownerReferences") or ()
            if any(one.get("uid") == uid for one in owners):
                after = copied(pod)
                del after["metadata"]["ownerReferences"]
                left = [one for one in after["metadata"].pop("finalizers", ()) if not one.startswith("batch.")]
                if left:
                    after["metadata"]["finalizers"] = left
                self._put(pods, pod, after)

    def _gone_if_free(self, kind: Kind, item: Item) -> Item:
        """One that is being deleted goes once no finalizer holds it, and no kubelet has it."""
        about = item["metadata"]
        if "deletionTimestamp" not in about or about.get("finalizers"):
            return item
        over = (item.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if kind.kind == "Pod" and about.get("deletionGracePeriodSeconds", 0) > 0 and not over:
            return item
        return self._drop(kind, item)

    def _put(self, kind: Kind, before: Item | None, after: Item) -> Item:
        self.version += 1
        after["metadata"]["resourceVersion"] = str(self.version)
        self.items[kind][_key(after)] = after
        if kind.kind == "Pod":
            self._labelled(before, after)
        self._tell(Happened(self.version, kind, before, after))
        return after

    def _drop(self, kind: Kind, item: Item) -> Item:
        self.version += 1
        last = copied(item)
        last["metadata"]["resourceVersion"] = str(self.version)
        self.items[kind].pop(_key(item), None)
        if kind.kind == "Pod":
            self._labelled(item, None)
        self._tell(Happened(self.version, kind, last, None))
        return last

    def _labelled(self, before: Item | None, after: Item | None) -> None:
        was, now = _job_of(before), _job_of(after)
        if was == now:
            return
        if was is not None and before is not None:
            pods = self.of_job.get(was, {})
            pods.pop(before["metadata"]["name"], None)
            if not pods:
                self.of_job.pop(was, None)
        if now is not None and after is not None:
            self.of_job.setdefault(now, {})[after["metadata"]["name"]] = None

    def _tell(self, one: Happened) -> None:
        self.history.append(one)
        self.changed.notify_all()


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _job_of(pod: Item | None) -> tuple[str, str] | None:
    name = None if pod is None else (pod["metadata"].get("labels") or {}).get(JOB_NAME)
    return None if pod is None or name is None else (pod["metadata"].get("namespace", ""), name)


# -- what the server adds ------------------------------------------------------------------------------------------


def _none(item: Item) -> None:
    pass


_PASSING = frozenset(("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"))


def _pod(item: Item) -> None:
    spec = item["spec"]
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("priority", 0)
    borne = {one.get("key") for one in spec.get("tolerations") or ()}
    spec["tolerations"] = [
        *(spec.get("tolerations") or ()),
        *(
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in _PASSING - borne
        ),
    ]
    for each in spec.get("containers") or ():
        asks = each.get("resources") or {}
        if limits := asks.get("limits"):  # a limit alone asks for as much
            asks["requests"] = {**limits, **(asks.get("requests") or {})}
            each["resources"] = asks
    item["status"] = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        item["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]


def _namespace(item: Item) -> None:
    item["status"] = {"phase": "Active"}


def _job(item: Item) -> None:
    about, spec = item["metadata"], item["spec"]
    marks = {"batch.kubernetes.io/controller-uid": about["uid"], "batch.kubernetes.io/job-name": about["name"]}
    marks |= {"controller-uid": about["uid"], "job-name": about["name"]}
    of_template = spec["template"].setdefault("metadata", {})
    of_template["labels"] = {**(of_template.get("labels") or {}), **marks}
    if "labels" not in about:
        about["labels"] = dict(of_template["labels"])
    spec.setdefault("parallelism", 1)
    spec.setdefault("completions", 1)
    spec.setdefault("backoffLimit", 6)
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": about["uid"]}}
    spec.setdefault("manualSelector", False)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    item["status"] = {}


_DEFAULTS: Mapping[tuple[str, str], Callable[[Item], None]] = {
    ("", "Pod"): _pod,
    ("", "Namespace"): _namespace,
    ("batch", "Job"): _job,
}


# -- lists ---------------------------------------------------------------------------------------------------------


def selected(kind: Kind, labels: str, fields: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether an object is meant by these selectors. Raises Refused."""
    tests = [_label_test(one) for one in _parts(labels)] + [_field_test(kind, one) for one in _parts(fields)]
    return lambda item: all(test(item) for test in tests)


def _parts(text: str) -> Iterator[str]:
    depth, part = 0, ""
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            yield part.strip()
            part = ""
        else:
            part += letter
    if part.strip():
        yield part.strip()


def _label_test(text: str) -> Callable[[Mapping[str, Any]], bool]:
    def label(item: Mapping[str, Any], key: str) -> str | None:
        return (item["metadata"].get("labels") or {}).get(key)

    for word in (" notin ", " in "):
        if word in text:
            key, _, rest = text.partition(word)
            values = {one.strip() for one in rest.strip().strip("()").split(",")}
            if word == " in ":
                return lambda item: label(item, key.strip()) in values
            return lambda item: label(item, key.strip()) not in values
    for sign in ("!=", "==", "="):
        if sign in text:
            key, _, value = (part.strip() for part in text.partition(sign))
            if sign == "!=":
                return lambda item: label(item, key) != value
            return lambda item: label(item, key) == value
    if text.startswith("!"):
        return lambda item: label(item, text[1:].strip()) is None
    return lambda item: label(item, text) is not None


def _field_test(kind: Kind, text: str) -> Callable[[Mapping[str, Any]], bool]:
    sign = next((sign for sign in ("!=", "==", "=") if sign in text), "")
    if not sign:
        raise bad(f"invalid selector: '{text}'; can't understand '{text}'")
    field, _, value = text.partition(sign)
    if field not in ("metadata.name", "metadata.namespace", *kind.fields):
        raise bad(f"field label not supported: {field}")

    def test(item: Mapping[str, Any]) -> bool:
        found: Any = item
        for part in field.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return (str(found or "") == value) is (sign != "!=")

    return test


def _token(version: int, start: str) -> str:
    text = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": f"{start}\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, str]:
    try:
        told = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(told["rv"]), str(told["start"]).rstrip("\0")
    except (ValueError, KeyError, TypeError):
        text = "invalid character 'i' looking for beginning of value"
        raise bad(f"invalid continue token: continue key is not valid: {text}") from None


def listed(store: Store, kind: Kind, namespace: str, query: Mapping[str, str]) -> Item:
    """A list, or a page of it. Raises Refused."""
    meant = selected(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    wanted, match, token = (query.get(name, "") for name in ("resourceVersion", "resourceVersionMatch", "continue"))
    _check_list(wanted, match, token, query)
    version, start = store.version, ""
    if token:
        version, start = _read_token(token)
        if version == -1:
            version = store.version
        elif version < store.oldest:
            raise Refused(410, _expired(start))
    elif wanted and match == "Exact":
        version = int(wanted)
        if version < store.oldest:
            raise refused(410, "The resourceVersion for the provided list is too old.", "Expired")
    elif wanted and int(wanted) > store.version:
        version = int(wanted)
    if version > store.version:
        time.sleep(0.05)  # the real one waits 3 s
        raise too_large(version, store.version)
    items = [item for item in store.at(kind, namespace, version) if meant(item)]
    items = [item for item in items if _place(item, namespace) > start]
    about: Item = {"resourceVersion": str(version)}
    limit = 0 if wanted == "0" else int(query.get("limit", "0") or 0)
    if limit and len(items) > limit:
        about["continue"] = _token(version, _place(items[limit - 1], namespace))
        if not (query.get("labelSelector") or query.get("fieldSelector")):
            about["remainingItemCount"] = len(items) - limit
        items = items[:limit]
    sent = [_in_list(kind, item) for item in items]
    return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": about, "items": sent}


def _place(item: Mapping[str, Any], namespace: str) -> str:
    about = item["metadata"]
    return f"/{about['name']}" if namespace else f"/{about.get('namespace', '')}/{about['name']}"


def _in_list(kind: Kind, item: Item) -> Item:
    # Items of the built-in kinds come without kind and version.
    return item if kind.custom else {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}


def _expired(start: str) -> Item:
    text = (
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list."
    )
    body = refused(410, text, "Expired").body
    return {**body, "metadata": {"continue": _token(-1, start.lstrip("/"))}}


def _check_list(wanted: str, match: str, token: str, query: Mapping[str, str]) -> None:
    forbidden, field = "Forbidden: ", "resourceVersionMatch"
    causes: list[tuple[str, str, str]] = []
    if match and not wanted:
        text = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        causes.append((field, "FieldValueForbidden", forbidden + text))
    if query.get("sendInitialEvents") and query.get("watch") not in ("1", "true"):
        text = "sendInitialEvents is forbidden for list"
        causes.append(("sendInitialEvents", "FieldValueForbidden", forbidden + text))
    if match == "Exact" and wanted == "0":
        text = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        causes.append((field, "FieldValueForbidden", forbidden + text))
    if wanted and match not in ("", "Exact", "NotOlderThan"):
        text = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""'
        causes.append((field, "FieldValueNotSupported", text))
    if causes:
        raise invalid("ListOptions", "meta.k8s.io", "", causes)
    if token and wanted:
        raise bad("specifying resource version is not allowed when using continue")
    if wanted and not wanted.isdigit():
        text = f'resourceVersion: Invalid value: "{wanted}": strconv.ParseUint: parsing "{wanted}": invalid syntax'
        raise bad(f"invalid resource version: {text}")
