"""FLOPs and bytes of PyTorch's operators from the shapes that its profiler records.

A multiply-add counts as two. Bytes are operands read once and results written once: what a cache serves is counted as
memory traffic too, so memory utilisation is an upper bound. Operators that are not listed tell nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuloom.core.sums import sum_floats

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4, "short int": 2,
    "signed char": 1, "unsigned char": 1, "bool": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element, by the type's name in a trace."""
ELEMENTWISE = frozenset((
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "relu", "relu_", "gelu", "silu", "silu_", "sigmoid",
    "sigmoid_", "tanh", "tanh_", "exp", "sqrt", "rsqrt", "neg", "pow", "clamp", "clamp_", "clamp_min", "clamp_min_",
    "threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "where",
    "masked_fill", "masked_fill_", "native_dropout", "native_dropout_backward", "addcmul", "addcmul_", "addcdiv",
    "addcdiv_", "lerp", "hardtanh", "hardtanh_", "hardswish", "hardswish_", "leaky_relu", "leaky_relu_", "_softmax",
    "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm", "cudnn_batch_norm",
    "native_batch_norm", "native_group_norm", "cudnn_batch_norm_backward", "native_batch_norm_backward",
    "native_layer_norm_backward",
))  # fmt: skip
ONLY_OPERANDS = ("copy_", "sum", "mean", "max", "min", "amax", "amin", "argmax", "argmin", "norm", "fill_", "zero_")
_NUMBERS = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class Work:
    """What an operator does: which ceiling of compute it is held against, FLOPs and bytes (None: unknown)."""

    ceiling: str
    flops: float | None
    bytes: float | None


@dataclass(frozen=True, slots=True)
class _Inputs:
    dims: list[list[int]]
    types: list[str]
    values: list[Any]
    strides: list[Any]

    def size(self, index: int) -> float:
        """Bytes of an operand; what is repeated along a dimension (stride 0) is read once."""
        dims = self.dims[index]
        steps = self.strides[index] if index < len(self.strides) else []
        if isinstance(steps, list) and len(steps) == len(dims):
            dims = [size for size, step in zip(dims, steps, strict=True) if step != 0]
        return math.prod(dims) * SIZES[self.types[index]]

    def numbers(self, index: int) -> list[int]:
        """A list of whole numbers given by value."""
        value = self.values[index]
        return [int(text) for text in _NUMBERS.findall(value)] if isinstance(value, str) else list(value)


def work_of(name: str, args: dict[str, Any]) -> Work | None:
    """The work of an operator event (`aten::mm`) by its args in the trace; None where it can't be told."""
    dims, types = args.get("Input Dims"), args.get("Input type", args.get("Input Types"))
    values = args.get("Concrete Inputs", [])
    strides = args.get("Input Strides", [])
    if not all(isinstance(part, list) for part in (dims, types, values, strides)):
        return None
    try:
        inputs = _Inputs(dims or [], [str(kind) for kind in types or []], values, strides)
        plain = name.removeprefix("aten::")
        if plain in _RULES:
            return _RULES[plain](inputs)
        if plain in ELEMENTWISE or plain in ONLY_OPERANDS or name.startswith("triton_"):
            return _streaming(inputs, plain)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        pass  # shapes that this operator can't have, types that are not known
    return None


def _tensors(inputs: _Inputs) -> list[int]:
    return [i for i, kind in enumerate(inputs.types) if kind in SIZES and isinstance(inputs.dims[i], list)]


def _streaming(inputs: _Inputs, name: str) -> Work | None:
    places = _tensors(inputs)
    if not places:
        return None
    largest = max(places, key=lambda place: math.prod(inputs.dims[place]))
    traffic = sum_floats(inputs.size(place) for place in places)
    if name.startswith("triton_"):
        return Work("mm:float", None, traffic)  # the results are among the arguments
    written = inputs.size(largest) if name in ELEMENTWISE else 0.0
    return Work("mm:float", float(math.prod(inputs.dims[largest])), traffic + written)


def _product(first: int) -> Callable[[_Inputs], Work]:
    """Matrix products; the operands begin at `first`."""

    def rule(inputs: _Inputs) -> Work:
        a, b = inputs.dims[first], inputs.dims[first + 1]
        (rows, inner), (other, columns) = a[-2:], b[-2:]
        if inner != other or len(a) != len(b):
            raise ValueError("no product")
        batch, kind = math.prod(a[:-2]), inputs.types[first]
        traffic = inputs.size(first) + inputs.size(first + 1) + batch * rows * columns * SIZES[kind]
        return Work(f"mm:{kind}", 2.0 * batch * rows * inner * columns, traffic)

    return rule


def _convolution(padding: int, stride: int, dilation: int) -> Callable[[_Inputs], Work]:
    """Convolutions (input, weight, …); where the values of padding, stride and dilation stand."""

    def rule(inputs: _Inputs) -> Work:
        x, w, kind = inputs.dims[0], inputs.dims[1], inputs.types[0]
        pads, steps, gaps = (inputs.numbers(place) for place in (padding, stride, dilation))
        outer = [
            (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
            for size, kernel, pad, step, gap in zip(x[2:], w[2:], pads, steps, gaps, strict=True)
        ]
        results = x[0] * w[0] * math.prod(outer)
        if min(outer) < 1:
            raise ValueError("no results")
        traffic = inputs.size(0) + inputs.size(1) + results * SIZES[kind]
        return Work(f"conv:{kind}", 2.0 * results * math.prod(w[1:]), traffic)

    return rule


def _convolution_backward(inputs: _Inputs) -> Work:
    """(gradient, input, weight, …, output_mask): one convolution's FLOPs for each gradient that is asked for."""
    gradient, weight, kind = inputs.dims[0], inputs.dims[2], inputs.types[0]
    mask = str(inputs.values[10])
    wanted = mask.count("True") - mask.rstrip(" ]").endswith("True") if "True" in mask else 2
    traffic = inputs.size(0) * wanted + 2 * (inputs.size(1) + inputs.size(2))
    return Work(f"conv:{kind}", 2.0 * math.prod(gradient) * math.prod(weight[1:]) * wanted, traffic)


def _attention(inputs: _Inputs) -> Work:
    """(query, key, value, …) as batch, length, heads, width; `is_causal` halves it."""
    (batch, length, heads, width), keys = inputs.dims[0], inputs.dims[1][1]
    part = 0.5 if str(inputs.values[8]) == "True" else 1.0
    traffic = 2 * inputs.size(0) + inputs.size(1) + inputs.size(2)
    return Work(f"mm:{inputs.types[0]}", part * 4.0 * batch * heads * length * keys * width, traffic)


_RULES: dict[str, Callable[[_Inputs], Work]] = {
    "mm": _product(0),
    "bmm": _product(0),
    "addmm": _product(1),
    "addmm_": _product(1),
    "baddbmm": _product(1),
    "_addmm_activation": _product(1),
    "cudnn_convolution": _convolution(2, 3, 4),
    "_conv_depthwise2d": _convolution(5, 4, 6),
    "convolution_backward": _convolution_backward,
    "_flash_attention_forward": _attention,
}
