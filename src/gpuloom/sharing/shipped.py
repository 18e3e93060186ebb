"""Profiles that gpuloom makes itself, so that `gpuloom share simulate` works with no file at hand.

They are ESTIMATES, not measurements: the layers of ResNet-50 (He et al., CVPR 2016, table 1: bottleneck stages of 3,
4, 6 and 3 blocks; 224 x 224 input) are counted, each gives one kernel for its convolution and one for what follows it
(batch normalisation and ReLU, elementwise), and a kernel lasts as long as the slower of arithmetic and memory traffic
takes on a V100 (NVIDIA: 80 SMs, 15.7 TFLOP/s in single precision, 900 GB/s), at 65 % of these peaks. A block of a
convolution computes 64 x 32 outputs, and blocks spread over all SMs; one of an elementwise kernel 4,096. Training is
forward, two kernels of the same work backward for each convolution, and an optimizer step on each weight.
"""

from __future__ import annotations

from functools import cache

from gpuloom.sharing.profiles import KernelProfile, KernelRecord, classify, collect

SM_COUNT, CC, DEVICE = 80, "7.0", "V100"
FLOPS, BYTES_PER_S, EFFICIENCY = 15.7e12, 900e9, 0.65
FLOOR_NS = 3000
SHIPPED = ("resnet50", "resnet50-train")
_SOURCE = "estimated by gpuloom from the layers of ResNet-50 and the peaks of a V100; not measured"
_STAGES = ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7))


@cache
def shipped(name: str) -> KernelProfile:
    """`resnet50` (inference of 4 images) or `resnet50-train` (an iteration of 32). Raises KeyError for another."""
    batch, training = {"resnet50": (4, False), "resnet50-train": (32, True)}[name]
    forward: list[KernelRecord] = []
    backward: list[KernelRecord] = []
    update: list[KernelRecord] = []
    for channels, filters, kernel, size in _convolutions():
        outputs = batch * size * size * filters
        flops = 2.0 * outputs * channels * kernel * kernel
        weights = channels * filters * kernel * kernel
        traffic = 4.0 * (outputs + batch * size * size * channels + weights)
        tag = f"{kernel}x{kernel}_{channels}_{filters}_{size}"
        forward += [_kernel(f"conv_{tag}", outputs / 2048, flops, traffic), _pointwise(f"bn_relu_{tag}", outputs, 2)]
        backward[:0] = [
            _pointwise(f"bn_relu_backward_{tag}", outputs, 3),
            _kernel(f"conv_data_{tag}", outputs / 2048, flops, traffic),
            _kernel(f"conv_weights_{tag}", max(weights / 2048, 16), flops, traffic),
        ]
        update.append(_pointwise(f"sgd_{tag}", weights, 4))
    dense = _kernel("gemm_2048_1000", batch * 1000 / 2048, 2.0 * batch * 2048 * 1000, 4.0 * 2048 * 1000)
    launches = [*forward, dense, *([dense, dense, *backward, *update] if training else [])]
    return collect(name, SM_COUNT, launches, DEVICE, CC, _SOURCE)


def _convolutions() -> list[tuple[int, int, int, int]]:
    """Input channels, filters, kernel size and output size of each convolution."""
    found, channels = [(3, 64, 7, 112)], 64
    for blocks, width, size in _STAGES:
        for block in range(blocks):
            found += [(channels, width, 1, size), (width, width, 3, size), (width, 4 * width, 1, size)]
            if block == 0:
                found.append((channels, 4 * width, 1, size))
            channels = 4 * width
    return found


def _kernel(name: str, blocks: float, flops: float, traffic: float) -> KernelRecord:
    """A kernel of so many blocks, two of which fit on an SM, bound by arithmetic or by memory."""
    count = max(1, round(blocks))
    slots = -(-count // 2)
    busy = min(1.0, count / SM_COUNT)  # a kernel that leaves SMs idle can't reach the peaks
    arithmetic, memory = flops / (FLOPS * EFFICIENCY * busy), traffic / (BYTES_PER_S * EFFICIENCY)
    seconds = max(arithmetic, memory, FLOOR_NS / 1e9)
    compute, dram = min(1.0, flops / FLOPS / seconds), min(1.0, traffic / BYTES_PER_S / seconds)
    return KernelRecord(
        name,
        slots,
        round(seconds * 1e9),
        compute,
        dram,
        classify(compute, dram),
        (count, 1, 1),
        (256, 1, 1),
        count,
        256,
    )


def _pointwise(name: str, values: float, passes: int) -> KernelRecord:
    return _kernel(name, values / 4096, 4.0 * values, 4.0 * passes * values)
