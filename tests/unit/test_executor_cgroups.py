"""Control groups, on a tree of plain files that looks like the kernel's."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from faults import Fault, Injector
from gpuloom.executors.runner import cgroups
from gpuloom.executors.runner.cgroups import Group, find


def mount(top: Path, kind: str = "cgroup2", options: str = "rw", root: str = "/") -> str:
    return f"31 23 0:28 {root} {top} rw,relatime shared:1 - {kind} {kind} {options}\n"


def group(place: Path, *, controllers: str = "cpu memory pids", handed_down: str = "", inside: str = "") -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / "cgroup.type").write_text("domain\n")
    (place / "cgroup.controllers").write_text(controllers)
    (place / "cgroup.subtree_control").write_text(handed_down)
    (place / "cgroup.procs").write_text(inside)
    return place


class TestVersion2:
    def test_a_group_that_hands_the_controllers_down(self, tmp_path: Path) -> None:
        own = group(tmp_path / "user" / "scope", handed_down="cpu memory")
        found = find("home", mountinfo=mount(tmp_path), own="0::/user/scope\n")
        assert found.version == 2
        # The new group has no files here, so it seems to offer nothing to its own groups.
        assert found.bases == {"freezer": f"{own}/gpuloom-home"}

    def test_limits(self, tmp_path: Path) -> None:
        own = group(tmp_path / "scope", handed_down="cpu memory")
        base = group(own / "gpuloom-home")
        found = find("home", mountinfo=mount(tmp_path), own="0::/scope\n")
        assert set(found.bases) == {"freezer", "memory", "cpu"}
        assert (base / "cgroup.subtree_control").read_text() == "+memory +cpu"
        run = group(base / "1.1")
        for name in ("memory.max", "memory.swap.max", "memory.oom.group", "cpu.max"):
            (run / name).write_text("")
        made = found.create("1.1", cpus=1.5, memory_mib=256)
        assert made is not None
        made.add(77)
        values = {path.name: path.read_text() for path in run.iterdir()}
        assert values["memory.max"] == str(256 << 20)
        assert values["memory.swap.max"] == "0"
        assert values["memory.oom.group"] == "1"
        assert values["cpu.max"] == "150000 100000"
        assert values["cgroup.procs"] == "77"
        assert found.limits()["memory"] == "cgroup v2"
        assert found.limits_cpus
        assert [stale.places["freezer"] for stale in found.stale({"2.1"})] == [str(run)]
        assert found.stale({"1.1"}) == []

    def test_an_ancestor_is_taken_where_it_gives_more(self, tmp_path: Path) -> None:
        """Our own group has processes, so it can't hand controllers down; the user's manager above it does."""
        group(tmp_path / "user", handed_down="cpu memory")
        group(tmp_path / "user" / "scope", inside="1 2 3")
        found = find("home", mountinfo=mount(tmp_path), own="0::/user/scope\n")
        assert found.bases == {"freezer": f"{tmp_path}/user/gpuloom-home"}

    def test_our_own_processes_move_aside(self, tmp_path: Path) -> None:
        own = group(tmp_path / "scope", inside="41 42")
        (own / "gpuloom-main").mkdir()
        (own / "gpuloom-main" / "cgroup.procs").write_text("")
        found = find("home", mountinfo=mount(tmp_path), own="0::/scope\n", ours=(41, 42))
        assert found.bases["freezer"] == f"{own}/gpuloom-home"
        assert (own / "gpuloom-main" / "cgroup.procs").read_text() == "42"
        assert (own / "cgroup.subtree_control").read_text() == "+memory +cpu"

    def test_others_stay_where_they_are(self, tmp_path: Path) -> None:
        own = group(tmp_path / "scope", inside="41 42 900")
        found = find("home", mountinfo=mount(tmp_path), own="0::/scope\n", ours=(41, 42))
        assert found.bases == {"freezer": f"{own}/gpuloom-home"}  # ends and freezes as a whole, limits nothing
        assert not (own / "gpuloom-main").exists()
        assert found.limits()["memory"].startswith("watched")
        assert found.limits()["cpus"] == "not enforced: cgroup v2 without this controller"
        assert not found.limits_cpus

    def test_another_users_group(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cgroups, "_writable", lambda _: False)
        group(tmp_path / "session-3.scope")
        found = find("home", mountinfo=mount(tmp_path), own="0::/session-3.scope\n")
        assert found.version == 0
        assert "belongs to another user" in found.why
        assert "systemd-run --user --scope -p Delegate=yes" in found.why
        assert found.create("1.1", cpus=1, memory_mib=1) is None
        assert found.limits()["processes"] == f"watched: {found.why}"

    def test_a_container_that_sees_a_part(self, tmp_path: Path) -> None:
        own = group(tmp_path / "job", handed_down="cpu memory")
        text = mount(tmp_path, root="/outside/pod")
        assert find("h", mountinfo=text, own="0::/outside/pod/job\n").bases["freezer"] == f"{own}/gpuloom-h"
        assert find("h", mountinfo=text, own="0::/elsewhere\n").version == 0
        assert find("h", mountinfo=mount(tmp_path), own="0::/../other\n").version == 0

    def test_what_a_group_tells(self, tmp_path: Path) -> None:
        run = group(tmp_path / "1.1", inside="5\n6\n")
        group(run / "nested", inside="7\n")
        made = Group(2, dict.fromkeys(("freezer", "memory", "cpu"), str(run)))
        (run / "cgroup.events").write_text("populated 1\nfrozen 1\n")
        (run / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\noom_group_kill 1\n")
        (run / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
        (run / "cgroup.kill").write_text("")
        (run / "cgroup.freeze").write_text("0")
        assert sorted(made.pids()) == [5, 6, 7]
        assert (made.frozen(), made.oom_kills(), made.cpu_s()) == (True, 3, 2.5)
        made.kill()
        made.freeze()
        assert (run / "cgroup.kill").read_text() == "1"
        assert (run / "cgroup.freeze").read_text() == "1"
        made.thaw()
        assert (run / "cgroup.freeze").read_text() == "0"
        (run / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        assert made.pids() == []


class TestVersion1:
    def test_places(self, tmp_path: Path) -> None:
        text = "".join(
            mount(tmp_path / name, "cgroup", f"rw,{name}") for name in ("freezer", "memory", "cpu,cpuacct", "pids")
        )
        for name in ("freezer", "memory", "cpu,cpuacct"):
            (tmp_path / name / "ours").mkdir(parents=True)
            (tmp_path / name / "ours" / "cgroup.procs").write_text("")
        own = "9:freezer:/ours\n8:memory:/ours\n7:cpu,cpuacct:/ours\n6:pids:/\n0::/\n"
        found = find("home", mountinfo=text, own=own)
        assert found.version == 1
        assert found.bases == {
            "freezer": f"{tmp_path}/freezer/ours/gpuloom/home",
            "memory": f"{tmp_path}/memory/ours/gpuloom/home",
            "cpu": f"{tmp_path}/cpu,cpuacct/ours/gpuloom/home",
        }
        for name, files in (("memory", ["memory.limit_in_bytes"]), ("cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"])):
            place = Path(found.bases[name]) / "1.1"
            place.mkdir()
            for file in files:
                (place / file).write_text("")
        made = found.create("1.1", cpus=0.5, memory_mib=10)
        assert made is not None
        assert (Path(made.places["memory"]) / "memory.limit_in_bytes").read_text() == str(10 << 20)
        assert (Path(made.places["cpu"]) / "cpu.cfs_quota_us").read_text() == "50000"
        (Path(made.places["memory"]) / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
        assert made.oom_kills() == 2
        assert "cpu" not in (found.create("2.1", cpus=None, memory_mib=None) or made).places
        assert sorted(Path(stale.places["freezer"]).name for stale in found.stale({"2.1"})) == ["1.1"]

    def test_a_process_that_one_controller_does_not_take_is_in_no_group(self, tmp_path: Path) -> None:
        """Else the group's removal would end it."""
        places = {name: str(group(tmp_path / name / "1.1")) for name in ("freezer", "memory")}
        for name in places:
            group(tmp_path / name)
        (tmp_path / "memory" / "1.1" / "cgroup.procs").unlink()
        with pytest.raises(FileNotFoundError):
            Group(1, places).add(77)
        assert (tmp_path / "freezer" / "cgroup.procs").read_text() == "77"

    def test_none_writable(self, tmp_path: Path) -> None:
        found = find("home", mountinfo=mount(tmp_path, "cgroup", "rw,freezer"), own="9:freezer:/\n")
        assert found.version == 0
        assert found.why == "cgroup v2 is not mounted; no writable cgroup v1 freezer"


def test_switched_off() -> None:
    found = find("home", mode="off")
    assert found.version == 0
    assert found.limits()["cpus"].startswith("not enforced: control groups are switched off")


def test_a_mode_is_kept_to(tmp_path: Path) -> None:
    group(tmp_path / "scope", handed_down="cpu memory")
    text = mount(tmp_path)
    assert find("home", mode="v1", mountinfo=text, own="0::/scope\n").version == 0
    assert find("home", mode="v2", mountinfo=text, own="0::/scope\n").version == 2


def test_removing(tmp_path: Path) -> None:
    (tmp_path / "1.1" / "nested").mkdir(parents=True)
    made = Group(2, {"freezer": str(tmp_path / "1.1")})
    assert made.remove()
    assert not made.exists()
    assert made.remove()


def test_what_can_not_be_read_now_is_not_taken_for_gone(tmp_path: Path) -> None:
    """Else a run would be told of as ended while its processes go on."""
    run = group(tmp_path / "1.1", inside="5\n")
    group(run / "nested", inside="7\n")
    (run / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (run / "memory.events").write_text("oom_kill 1\n")
    made = Group(2, {"freezer": str(run), "memory": str(run)})

    def look() -> tuple[list[int], int]:
        return sorted(made.pids()), made.oom_kills()

    with Injector(("executors/runner/cgroups.py",)) as seen:
        assert look() == ([5, 7], 1)
    for call in seen.calls:
        for number in (errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.EACCES):
            with Injector(("executors/runner/cgroups.py",), Fault(call, number)), pytest.raises(OSError, match="Errno"):
                look()
        with Injector(("executors/runner/cgroups.py",), Fault(call, errno.ENODEV)):
            look()  # one below it is just being removed
    assert Group(2, {"freezer": f"{run}/gone"}).pids() == []


def test_lines_of_mounts() -> None:
    """What is too short, or of another kind, is passed over; of two mounts of one kind the first counts."""
    text = (
        "31 23 0:28 / - cgroup2 cgroup2 rw\n"
        "31 23 0:28 / /short rw - cgroup2 cgroup2\n"
        "31 23 0:28 / /other rw - ext4 /dev/sda rw\n"
        "31 23 0:28 /r /a\\040b rw - cgroup cgroup rw,cpu\n"
        "31 23 0:28 / /c rw shared:1 - cgroup2 cgroup2 rw\n"
        "31 23 0:28 / /d rw shared:1 - cgroup2 cgroup2 rw\n"
    )
    assert cgroups._mounts(text) == {"rw": ("/a b", "/r"), "cpu": ("/a b", "/r"), "": ("/c", "/")}
