"""Numbers about tensors, computed where the tensors are and read back together at the end of a step.

Nothing here changes what the program computes: gradients and functions' and dispatch's overrides are off while it
runs, and no random number is drawn.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

from orjson import Fragment, dumps

_WHOLE_BYTES = 1 << 20
"""Up to so many bytes of a tensor in memory its hash covers; of a larger one it covers blocks that make up as many."""
_BLOCKS = 16
_WHOLE_ELEMENTS = 1 << 16
"""The same for a tensor on a device, in elements."""
_SAMPLE = 64
"""Elements of one tensor that its change is estimated from."""
_DIGITS = "%.6g"


@contextmanager
def undisturbed(torch: Any) -> Iterator[None]:
    """Compute without gradients, and past the modes and tensor subclasses of the program."""
    enabled = torch.is_grad_enabled()
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        torch._C._set_grad_enabled(False)
        try:
            yield
        finally:
            torch._C._set_grad_enabled(enabled)


def plain(torch: Any, tensor: Any) -> Any | None:
    """What can be computed with: `tensor` itself, the part of a distributed one that is here, or None.

    Meta, sparse, quantized and nested tensors, and those of unknown classes, give None; complex ones their real view.
    """
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        if not issubclass(kind, torch.Tensor):
            return None
        tensor = _local_part(tensor)
        if type(tensor) is not torch.Tensor:
            return None
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized or tensor.is_nested:
        return None
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach().resolve_conj())
    return tensor if tensor.is_floating_point() else None


def _local_part(tensor: Any) -> Any | None:
    """What is here of a distributed tensor (DTensor keeps it in a slot), without asking its class."""
    for kind in vars(type)["__mro__"].__get__(type(tensor)):
        slot = vars(type)["__dict__"].__get__(kind).get("_local_tensor")
        if type(slot) is MemberDescriptorType:
            return slot.__get__(tensor)
    return object.__getattribute__(tensor, "__dict__").get("_local_tensor")


class Measures:
    """Collects numbers during a step; each is known by a handle until they are read at the end."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pending: list[Any] = []
        self.values: list[float | None] = []
        """By handle, after `read`."""

    def add(self, scalar: Any) -> int:
        """Keep a tensor without dimensions until the end of the step."""
        self._pending.append(scalar)
        return len(self._pending) - 1

    def norms(self, tensors: Sequence[Any | None]) -> list[int | None]:
        """2-norms of plain tensors; None for None."""
        found: list[int | None] = [None] * len(tensors)
        groups: dict[tuple[Any, Any], list[int]] = {}
        for i, tensor in enumerate(tensors):
            if tensor is not None:
                groups.setdefault((tensor.device, tensor.dtype), []).append(i)
        for (_, dtype), members in groups.items():
            wide = {} if dtype in (self._torch.float32, self._torch.float64) else {"dtype": self._torch.float32}
            try:
                norms = self._torch._foreach_norm([tensors[i] for i in members], 2, **wide)
            except Exception:  # one that can't be computed with (8 bits) must not take the others along
                norms = [self._norm(tensors[i], wide) for i in members]
            for i, norm in zip(members, norms, strict=True):
                found[i] = None if norm is None else self.add(norm)
        return found

    def _norm(self, tensor: Any, wide: dict[str, Any]) -> Any | None:
        try:
            return self._torch._foreach_norm([tensor], 2, **wide)[0]
        except Exception:
            return None

    def hashes(self, tensors: Sequence[Any | None]) -> list[str | tuple[str, int] | None]:
        """Content hashes of plain tensors, as `hash_text` takes them at the end."""
        return [None if tensor is None else self._hash(tensor) for tensor in tensors]

    def _hash(self, tensor: Any) -> str | tuple[str, int] | None:
        try:
            if tensor.device.type == "cpu":
                return memory_hash(tensor)
            return self._device_hash(tensor)
        except Exception:  # a kind of tensor that has no bytes to look at
            return None

    def _device_hash(self, tensor: Any) -> tuple[str, int]:
        """A sum of the elements' bits with weights by place, on the tensor's device."""
        torch = self._torch
        flat = tensor.detach().reshape(-1)
        every = -(-flat.numel() // _WHOLE_ELEMENTS)
        if every > 1:
            flat = flat[::every]
        bits = flat.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])
        weights = torch.arange(1, bits.numel() + 1, device=bits.device, dtype=torch.int64)
        weights = (weights * 0x5851F42D4C957F2D) ^ (weights << 17) | 1
        return ("~" if every > 1 else ""), self.add((bits.to(torch.int64) * weights).sum())

    def hash_text(self, found: str | tuple[str, int] | None) -> str | None:
        """A hash as text, after `read`."""
        if found is None or isinstance(found, str):
            return found
        value = self.values[found[1]]
        return None if value is None else f"{found[0]}{int(value) & (1 << 64) - 1:016x}"

    def read(self) -> None:
        """Bring the numbers to the host: one synchronisation for each device."""
        values: list[float | None] = [None] * len(self._pending)
        groups: dict[tuple[Any, Any], list[int]] = {}
        for i, scalar in enumerate(self._pending):
            groups.setdefault((scalar.device, scalar.dtype), []).append(i)
        for members in groups.values():
            numbers = self._torch.stack([self._pending[i] for i in members]).tolist()
            for i, number in zip(members, numbers, strict=True):
                values[i] = number
        self._pending.clear()
        self.values = values

    def reals(self, handles: Sequence[int | None]) -> Fragment:
        """A column of numbers, after `read`."""
        values = self.values
        return reals([None if handle is None else values[handle] for handle in handles])


class Samples:
    """Some elements of each of some plain tensors, the same ones each time, copied together."""

    def __init__(self, torch: Any, tensors: Sequence[Any | None]) -> None:
        self._groups: list[tuple[list[int], list[int], Any]] = []
        """For each device and kind of number: which tensors, how many elements of each, the elements."""
        self.shares = [1.0] * len(tensors)
        """How many elements of a tensor each of its elements here stands for."""
        groups: dict[tuple[Any, Any], list[int]] = {}
        for i, each in enumerate(tensors):
            if each is not None and each.numel():
                groups.setdefault((each.device, each.dtype), []).append(i)
        for members in groups.values():
            views, counts = [], []
            for i in members:
                tensor: Any = tensors[i]
                size = tensor.numel()
                count = min(size, _SAMPLE)
                if tensor.is_contiguous():
                    views.append(tensor.as_strided((count,), (size // count,)))
                else:
                    views.append(tensor.reshape(-1)[: count * (size // count) : size // count])
                counts.append(count)
                self.shares[i] = size / count
            self._groups.append((members, counts, torch.cat(views)))

    def distances(self, later: Samples) -> list[float | None]:
        """How far each tensor has moved until `later`, estimated for the whole of it; to be called once, at the end."""
        found: list[float | None] = [None] * len(self.shares)
        for (members, counts, old), (_, _, new) in zip(self._groups, later._groups, strict=True):
            before, after = old.tolist(), new.tolist()
            at = 0
            for i, count in zip(members, counts, strict=True):
                found[i] = math.dist(before[at : at + count], after[at : at + count]) * math.sqrt(self.shares[i])
                at += count
        return found


@lru_cache(4096)
def _bytes_type(size: int) -> Any:
    return ctypes.c_char * size


def memory_hash(tensor: Any) -> str:
    """A CRC of a tensor's bytes; of a large one's first, last and some blocks between, then with "~" in front."""
    if not tensor.is_contiguous():
        tensor = tensor.detach().contiguous()
    size = tensor.nbytes
    if size == 0:
        return "00000000"
    data = _bytes_type(size).from_address(tensor.data_ptr())
    if size <= _WHOLE_BYTES:
        return f"{zlib.crc32(data):08x}"
    block = _WHOLE_BYTES // _BLOCKS
    view = memoryview(data)
    found = 0
    for number in range(_BLOCKS):
        begin = (size - block) * number // (_BLOCKS - 1)
        found = zlib.crc32(view[begin : begin + block], found)
    return f"~{found:08x}"


def real(value: float | None) -> float | str | None:
    """A number with some digits, and as a text where JSON has none."""
    if value is None or math.isfinite(value):
        return None if value is None else float(_DIGITS % value)
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def reals(values: Sequence[float | None]) -> Fragment:
    """A column of numbers as JSON. One call formats them all where they are all there and finite."""
    try:
        total = math.fsum(values)  # type: ignore[arg-type]
    except (TypeError, OverflowError, ValueError):
        total = math.nan
    if values and math.isfinite(total):
        return Fragment(("[" + ",".join([_DIGITS] * len(values)) + "]") % tuple(values))
    return Fragment(dumps(list(map(real, values))))
