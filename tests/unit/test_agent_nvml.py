"""What GPUs there are and how they are, through NVML."""

from __future__ import annotations

import pynvml
import pytest

from fake_nvml import FakeGpu, FakeNvml
from gpuloom.agent.inventory import inventory, memory_mib, model_name
from gpuloom.agent.nvml import Nvml
from gpuloom.core.errors import InputError


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_UNKNOWN,
    ],
)
def test_any_error_at_the_start_means_no_gpus_and_says_why(code: int) -> None:
    nvml = Nvml(FakeNvml(FakeGpu("GPU-a"), init_error=code))
    assert nvml.devices == ()
    assert str(pynvml.NVMLError(code)) in nvml.reason
    assert nvml.gpu_processes(["GPU-a"]) == {}
    with pytest.raises(InputError, match=r"no GPU found on this machine \(NVML: .*--slots N"):
        inventory(slots=None, nvml=nvml)


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ("1,3", ["GPU-b1", "GPU-d3"]),
        ("GPU-c2", ["GPU-c2"]),
        ("GPU-c", ["GPU-c2"]),
        ("0,1,2,3", ["GPU-a0", "GPU-b1", "GPU-c2", "GPU-d3"]),
        ("4,5,6,7", ["GPU-a0", "GPU-b1", "GPU-c2", "GPU-d3"]),  # the others are hidden, so these are all there are
        ("", []),
        ("NoDevFiles", []),
    ],
)
def test_of_a_node_of_which_slurm_gave_a_part_only_that_part_is_kept(named: str, kept: list[str]) -> None:
    nvml = Nvml(FakeNvml(*(FakeGpu(uuid) for uuid in ("GPU-a0", "GPU-b1", "GPU-c2", "GPU-d3"))))
    nvml.keep(named)
    assert [device.uuid for device in nvml.devices] == kept
    if kept:
        assert [gpu.uuid for gpu in inventory(slots=None, nvml=nvml).gpus] == kept
    else:
        with pytest.raises(InputError, match="none of CUDA_VISIBLE_DEVICES="):
            inventory(slots=None, nvml=nvml)


def test_a_driver_without_gpus_is_no_gpus() -> None:
    nvml = Nvml(FakeNvml())
    assert (nvml.devices, nvml.reason) == ((), "NVML: the driver knows no GPU")


def test_the_real_module_answers_on_this_machine() -> None:
    # With or without a GPU: it opens, or says why not.
    nvml = Nvml()
    assert nvml.devices or nvml.reason.startswith("NVML: ")
    nvml.close()


def test_the_inventory_tells_models_memory_and_topology() -> None:
    gpus = [FakeGpu(f"GPU-{name}") for name in "abcd"]
    gpus[2].node = gpus[3].node = 1
    fake = FakeNvml(*gpus)
    gpus[0].links = [gpus[1].bus, ""]
    node = inventory(slots=None, nvml=Nvml(fake))
    assert [(gpu.index, gpu.uuid, gpu.model, gpu.memory_mib, gpu.state) for gpu in node.gpus] == [
        (index, f"GPU-{name}", "A100-80GB", 81_920, "ok") for index, name in enumerate("abcd")
    ]
    assert node.topology == (
        (0, 1, "NVLINK"),
        (0, 2, "SYS"),
        (0, 3, "SYS"),
        (1, 2, "SYS"),
        (1, 3, "SYS"),
        (2, 3, "PHB"),
    )
    assert node.kind == "gpu"
    assert node.name
    assert node.cpus
    assert node.memory_mib == memory_mib()


def test_gpus_behind_one_switch_are_linked_to_each_other() -> None:
    switch = "00000000:F0:00.0"
    gpus = [FakeGpu(f"GPU-{name}", links=[switch] * 2) for name in "abc"]
    assert Nvml(FakeNvml(*gpus, FakeGpu("GPU-alone"))).links() == (
        (0, 1, "NVLINK"),
        (0, 2, "NVLINK"),
        (0, 3, "PHB"),
        (1, 2, "NVLINK"),
        (1, 3, "PHB"),
        (2, 3, "PHB"),
    )


def test_a_divided_gpu_is_listed_and_kept_from_jobs() -> None:
    node = inventory(slots=None, nvml=Nvml(FakeNvml(FakeGpu("GPU-a"), FakeGpu("GPU-b", mig=1))))
    assert [gpu.state for gpu in node.gpus] == ["ok", "unhealthy"]
    assert "MIG" in node.gpus[1].reason
    assert "nvidia-smi -i 1 -mig 0" in node.gpus[1].reason


def test_slots_stand_in_for_gpus() -> None:
    node = inventory(slots=3, nvml=Nvml(FakeNvml(init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)))
    assert [(gpu.index, gpu.uuid, gpu.model) for gpu in node.gpus] == [
        (0, "cpu-0", "CPU"),
        (1, "cpu-1", "CPU"),
        (2, "cpu-2", "CPU"),
    ]
    assert node.kind == "cpu"
    for slots in (0, -1, 10_001):
        with pytest.raises(InputError, match=f"--slots {slots}: must be between 1 and 10,000"):
            inventory(slots=slots, nvml=Nvml(FakeNvml()))


@pytest.mark.parametrize(
    ("name", "memory", "model"),
    [
        ("Tesla V100-SXM2-16GB", 16_160, "V100"),
        ("Tesla V100-SXM2-32GB", 32_510, "V100-32GB"),
        ("Tesla V100-PCIE-32GB", 32_510, "V100-32GB"),
        ("NVIDIA A100-SXM4-40GB", 40_960, "A100"),
        ("NVIDIA A100 80GB PCIe", 81_920, "A100-80GB"),
        ("Tesla P100-PCIE-16GB", 16_280, "P100"),
        ("Tesla T4", 15_360, "T4"),
        ("Tesla K80", 11_441, "K80"),
        ("NVIDIA H100 80GB HBM3", 81_559, "H100"),
        ("NVIDIA H100 PCIe", 81_559, "H100-PCIE"),
        ("NVIDIA H100 NVL", 95_830, "H100-NVL"),
        ("NVIDIA H200", 143_771, "H200"),
        ("NVIDIA GeForce RTX 3090", 24_576, "RTX-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", 24_564, "RTX-3090-Ti"),
        ("NVIDIA RTX A6000", 49_140, "RTX-A6000"),
        ("Quadro RTX 6000", 24_576, "Quadro-RTX-6000"),
        ("NVIDIA-A100-SXM4-80GB-SHARED", 81_920, "A100-80GB-SHARED"),
        ("Tesla-T4-SHARED", None, "T4-SHARED"),
        ("SHARED", None, "SHARED"),
        ("NVIDIA", None, "NVIDIA"),
        ("", None, "GPU"),
    ],
)
def test_models_are_called_what_users_call_them(name: str, memory: int | None, model: str) -> None:
    assert model_name(name, memory) == model


def test_a_reading_tells_what_the_gpu_can_tell() -> None:
    gpu = FakeGpu("GPU-a", utilization=70, power_mw=250_500, processes={11: 2000, 12: None}, graphics={13: 100})
    nvml = Nvml(FakeNvml(gpu))
    reading = nvml.read("GPU-a")
    assert (reading.utilization, reading.memory_used_mib, reading.power_w) == (70.0, 2100.0, 250.5)
    assert [(p.pid, p.memory_mib, p.compute) for p in reading.processes or ()] == [
        (11, 2000.0, True),
        (12, None, True),
        (13, 100.0, False),
    ]
    assert nvml.gpu_processes(["GPU-a", "GPU-none"]) == {"GPU-a": [11, 12]}


def test_what_is_not_supported_is_none_and_not_asked_again() -> None:
    missing = {"utilization", "temperature", "power", "ecc", "remap", "retired", "slow", "mig", "fields", "mps"}
    fake = FakeNvml(FakeGpu("GPU-a", missing=frozenset(missing)))
    nvml = Nvml(fake)
    for _ in range(5):
        reading = nvml.read("GPU-a")
    assert (reading.utilization, reading.temperature_c, reading.power_w, reading.ecc) == (None,) * 4
    assert (reading.recovery, reading.error, reading.processes) == (None, "", ())
    assert {feature: fake.calls[feature] for feature in missing} == dict.fromkeys(missing, 1)


def test_what_one_gpu_does_not_support_another_may() -> None:
    missing = {"utilization", "temperature", "power", "ecc", "slow"}
    nvml = Nvml(
        FakeNvml(FakeGpu("GPU-a", missing=frozenset(missing)), FakeGpu("GPU-b", utilization=70, power_mw=250_500))
    )
    for _ in range(2):
        reading = nvml.read("GPU-a")
        assert (reading.utilization, reading.temperature_c, reading.power_w, reading.ecc) == (None,) * 4
        reading = nvml.read("GPU-b")
        assert (reading.utilization, reading.power_w) == (70.0, 250.5)
        assert reading.temperature_c is not None
        assert reading.ecc is not None


def test_after_reopening_all_is_asked_again() -> None:
    """Another driver may tell what the one before could not."""
    gpu = FakeGpu("GPU-a", missing=frozenset({"power"}))
    nvml = Nvml(FakeNvml(gpu))
    assert nvml.read("GPU-a").power_w is None
    gpu.missing = frozenset()
    assert nvml.read("GPU-a").power_w is None
    nvml.reopen()
    assert nvml.read("GPU-a").power_w is not None


def test_memory_that_the_driver_keeps_is_not_in_use() -> None:
    for fake in (
        FakeNvml(FakeGpu("GPU-a", hidden=100)),
        FakeNvml(FakeGpu("GPU-a", hidden=1200), memory_v2=False),
        FakeNvml(FakeGpu("GPU-a", hidden=1200, missing=frozenset({"memory2"}))),
    ):
        used = Nvml(fake).read("GPU-a").memory_used_mib
        assert used is not None
        assert 99 < used < 500


def test_a_lost_gpu_is_told_from_one_that_does_not_answer() -> None:
    gpu, other = FakeGpu("GPU-a"), FakeGpu("GPU-b")
    nvml = Nvml(FakeNvml(gpu, other))
    gpu.error = pynvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.read("GPU-a").lost
    assert "GPU is lost" in nvml.read("GPU-a").error
    assert nvml.read("GPU-b").error == ""
    gpu.error = pynvml.NVML_ERROR_UNKNOWN
    reading = nvml.read("GPU-a")
    assert (reading.lost, reading.error) == (False, "NVML: Unknown Error")


def test_a_gpu_that_is_back_tells_its_memory_as_before() -> None:
    gpu = FakeGpu("GPU-a", hidden=1200)
    nvml = Nvml(FakeNvml(gpu))
    before = nvml.read("GPU-a").memory_used_mib
    gpu.error = pynvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.read("GPU-a").lost
    gpu.error = None
    assert nvml.read("GPU-a").memory_used_mib == before


def test_after_reopening_gpus_are_found_by_uuid_again() -> None:
    gpu, other = FakeGpu("GPU-a"), FakeGpu("GPU-b", utilization=5)
    fake = FakeNvml(gpu, other)
    nvml = Nvml(fake)
    del fake.gpus[0]
    nvml.reopen()
    assert nvml.read("GPU-b").utilization == 5.0
    assert nvml.read("GPU-a").lost
    assert [device.uuid for device in nvml.devices] == ["GPU-a", "GPU-b"]
    fake.init_error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    nvml.reopen()
    assert nvml.read("GPU-b").lost
    assert "Driver Not Loaded" in nvml.read("GPU-b").error
    fake.init_error = None
    nvml.reopen()
    assert nvml.read("GPU-b").error == ""


def test_xids_come_with_their_gpu_once() -> None:
    gpu, other = FakeGpu("GPU-a"), FakeGpu("GPU-b")
    fake = FakeNvml(gpu, other)
    nvml = Nvml(fake)
    fake.events = [(other, 31), (gpu, 79)]
    assert nvml.xids() == [("GPU-b", 31), ("GPU-a", 79)]
    assert nvml.xids() == []
    fake.wait_error = pynvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.xids() == []
    fake.wait_error, fake.events = None, [(gpu, 48)]
    nvml.reopen()
    assert nvml.xids() == [("GPU-a", 48)]
