"""A profile of a model, as measured: how long each stage of an iteration takes, on how many GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from difflib import get_close_matches

from gpuloom.core.cluster import plain_model
from gpuloom.core.errors import InputError
from gpuloom.core.sums import sum_floats
from gpuloom.core.words import plural

STAGES_3 = ("load", "compute", "network")
STAGES_4 = ("storage", "cpu", "gpu", "network")
FAR_BELOW, FAR_ABOVE = 0.5, 2.0
"""Sum of the stages over the iteration time: outside this range it is doubtful (shipped profiles: 0.79 to 1.78)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One measurement of a model's iteration, alone on its GPUs.

    Attributes:
        model: name of the model, as traces give it.
        gpus: GPUs it was measured on.
        batch_size: samples per iteration and GPU; None: not told.
        gpu_model: None: not told.
        iteration_s: seconds per iteration.
        stage_s: seconds per iteration of 3 stages (load, that is storage and CPU; compute; network) or of 4 (storage,
            CPU, GPU, network). They may add up to more than `iteration_s` where stages overlap, or to less.
        gpu_memory_mib: peak memory on each GPU; None: not known.
        start_s: seconds to start training; None: not known.
        source: who measured it.
        noise: how far its iterations differ, standard deviation over mean; None: not known.
        date: when it was measured (2026-11-25); '': not told.
    """

    model: str
    gpus: int
    iteration_s: float
    stage_s: tuple[float, ...]
    batch_size: int | None = None
    gpu_model: str | None = None
    gpu_memory_mib: int | None = None
    start_s: float | None = None
    source: str = ""
    noise: float | None = None
    date: str = ""

    def __post_init__(self) -> None:
        texts = (self.model, self.gpu_model or "", self.source, self.date)
        if not self.model.strip() or not all(map(str.isprintable, texts)):
            raise InputError(f"profile of {self.model!r}: names and source must be printable, the model not empty")
        for name, count in (("gpus", self.gpus), ("batch size", self.batch_size), ("memory", self.gpu_memory_mib)):
            if count is not None and count < 1:
                raise InputError(f"{self}: {name} is {count}, must be 1 or more")
        if not (math.isfinite(self.iteration_s) and self.iteration_s > 0):
            raise InputError(f"{self}: its iteration time is {self.iteration_s:g} s, must be finite and above 0")
        if len(self.stage_s) not in (3, 4):
            raise InputError(
                f"{self}: {len(self.stage_s)} stage times, must be 3 ({', '.join(STAGES_3)}) "
                f"or 4 ({', '.join(STAGES_4)})"
            )
        if self.noise is not None and not (math.isfinite(self.noise) and self.noise >= 0):
            raise InputError(f"{self}: its noise is {self.noise:g}, must be finite and not negative")
        for name, value in (*zip(self.stage_names, self.stage_s, strict=True), ("start", self.start_s or 0.0)):
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{self}: its {name} time is {value:g} s, must be finite and not negative")
        if sum_floats(self.stage_s) <= 0:
            raise InputError(f"{self}: all its stages take 0 s, at least one must take time")

    def __str__(self) -> str:
        batch = "" if self.batch_size is None else f", batch size {self.batch_size}"
        return f"profile of {self.model} on {plural(self.gpus, 'GPU')}{batch}"

    @property
    def key(self) -> tuple[str, int, int | None]:
        """By what a profile is looked up."""
        return self.model, self.gpus, self.batch_size

    @property
    def row_key(self) -> tuple[str, int, int | None, str]:
        """The key of a profile within a library, which may have it on several GPU models."""
        return *self.key, self.gpu_model or ""

    @property
    def stage_names(self) -> tuple[str, ...]:
        return STAGES_3 if len(self.stage_s) == 3 else STAGES_4

    @property
    def three_stages_s(self) -> tuple[float, float, float]:
        """Seconds of load (storage and CPU added up), compute and network."""
        *load, compute, network = self.stage_s
        return sum_floats(load), compute, network

    @property
    def doubt(self) -> str | None:
        """A sentence, if the stages are far from the iteration time."""
        share = sum_floats(self.stage_s) / self.iteration_s
        if FAR_BELOW <= share <= FAR_ABOVE:
            return None
        return (
            f"{self}: the stages add up to {sum_floats(self.stage_s):.4g} s, {share:.2f} times its iteration of "
            f"{self.iteration_s:.4g} s; check the units, unless its stages really "
            + ("overlap that much" if share > 1 else "leave that much idle")
        )


@dataclass(frozen=True, slots=True)
class Profiles:
    """Profiles by model and number of GPUs. A user's own profile replaces a shipped one of the same number of GPUs.

    Attributes:
        shipped: profiles that come with gpuloom.
        own: the user's library.
        library: name of the user's library, for messages.
    """

    shipped: tuple[Profile, ...] = ()
    own: tuple[Profile, ...] = ()
    library: str = ""
    _of_model: dict[str, list[tuple[Profile, bool]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table: dict[str, list[tuple[Profile, bool]]] = {}
        for profiles, is_own in ((self.own, True), (self.shipped, False)):
            for profile in profiles:
                table.setdefault(profile.model, []).append((profile, is_own))
        object.__setattr__(self, "_of_model", table)

    def find(self, model: str, gpus: int, batch_size: int | None = None) -> Profile | None:
        """The profile to use for a model on this many GPUs.

        It is one of that number of GPUs, else of the nearest smaller one, else of the smallest. Among those the
        user's own come first, then one without batch size, then the smallest batch size.

        Args:
            batch_size: only profiles of this batch size, or, if there is none, those that don't tell theirs.
        """
        known = self._of_model.get(model, [])
        if batch_size is not None:
            exact = [(p, own) for p, own in known if p.batch_size == batch_size]
            known = exact or [(p, own) for p, own in known if p.batch_size is None]
        if not known:
            return None
        counts = {profile.gpus for profile, _ in known}
        nearest = max((count for count in counts if count <= gpus), default=min(counts))
        here = [(p, own) for p, own in known if p.gpus == nearest]
        return min(here, key=lambda entry: (not entry[1], entry[0].batch_size or 0, entry[0].gpu_model or ""))[0]

    def alone_it_per_s(self, model: str, gpus: int, gpu_model: str) -> float | None:
        """Iterations per second by the user's own profiles of exactly this, or of GPUs that they don't tell; None:
        there is none. Others were measured elsewhere."""
        mine = [one for one in self.own if one.model == model and one.gpus == gpus]
        here = [one for one in mine if one.gpu_model and plain_model(one.gpu_model) == plain_model(gpu_model)]
        found = here or [one for one in mine if not one.gpu_model]
        return 1.0 / found[0].iteration_s if found and found[0].iteration_s > 0.0 else None

    def of(self, model: str) -> list[tuple[Profile, bool]]:
        """All profiles of a model and whether each is the user's, by number of GPUs; shadowed ones are left out.

        Raises:
            InputError: there is none; names close ones.
        """
        found = self._of_model.get(model)
        if not found:
            raise InputError(self.unknown(model))
        return [entry for entry in self.all() if entry[0].model == model]

    def all(self) -> list[tuple[Profile, bool]]:
        """All profiles and whether each is the user's, sorted; shipped ones with an own of the same key left out."""
        taken = {p.key for p in self.own}
        table = {p.row_key: (p, False) for p in self.shipped if p.key not in taken}
        table |= {p.row_key: (p, True) for p in self.own}
        return [table[key] for key in sorted(table, key=lambda key: (key[0], key[1], key[2] or 0, key[3]))]

    def __contains__(self, model: object) -> bool:
        """Whether there is a profile of this model, or of the script of this key."""
        return model in self._of_model

    def models(self) -> list[str]:
        return sorted(self._of_model)

    def unknown(self, model: str) -> str:
        """Says that there is no profile of a model, and which names are close."""
        lower = {name.lower(): name for name in self._of_model}
        close = [lower[name] for name in get_close_matches(model.lower(), lower, n=3, cutoff=0.6)]
        if close:
            return f"no profile of model {model!r}; did you mean {' or '.join(map(repr, close))}?"
        return f"no profile of model {model!r}; known are {', '.join(self.models()) or 'none'} (gpuloom profiles ls)"
