"""The runtime SDK: an :class:`Executor` allocates :class:`Buffer` objects on a backend.

Both are a thin layer over the device: a buffer is a flat tensor, what is done with it is recorded
like any other operation, and reading it waits for that.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torch_hologram import _C, boundary, devices
from torch_hologram._device import DEVICE_TYPE, lazy_init
from torch_hologram.backend import BackendType, locate

if TYPE_CHECKING:
    from types import TracebackType
    from typing import NoReturn

    import numpy.typing as npt
    from typing_extensions import Self

    from torch_hologram._device import Device

__all__ = ["Buffer", "Executor", "numpy_dtype", "torch_dtype"]

# Of a buffer's elements.
_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, "bool" if name == "bool_" else name)
    for name in (
        "float16",
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool_",
        "complex64",
        "complex128",
    )
}

_synchronize = _C.synchronize_tensor
# Of a tensor's first element. torch.Tensor.data_ptr runs what is recorded first, this does not.
address_of = _C.address_of


def torch_dtype(dtype: npt.DTypeLike) -> torch.dtype:
    """Returns torch's name of NumPy's dtype.

    Raises:
        TypeError: torch has no such dtype.
    """
    found = _DTYPES.get(np.dtype(dtype))
    if found is None:
        names = ", ".join(known.name for known in _DTYPES)
        raise TypeError(f"hologram buffers have no dtype {np.dtype(dtype)}: it is one of {names}")
    return found


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Returns NumPy's name of torch's dtype.

    Raises:
        TypeError: NumPy has no such dtype.
    """
    for kind, name in _DTYPES.items():
        if name == dtype:
            return kind
    raise TypeError(f"hologram buffers have no dtype {dtype}: NumPy has none of that name")


class _Closing:
    """A context manager that closes itself at the end; closed ones cannot be entered."""

    __slots__ = ()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle or copy {self!r}: it is memory of this process. Pickle "
            "buffer.to_numpy(), and allocate a buffer where it is loaded"
        )

    if TYPE_CHECKING:  # what those that close themselves have

        def _check_open(self) -> None: ...
        def close(self) -> None: ...


class Executor(_Closing):
    """Allocates buffers on the device of one backend.

    A context manager: at its end the executor is closed, and the buffers it has allocated with it.

    Args:
        backend: ``"cpu"``, ``"cuda"``, ``"metal"`` or ``"auto"``, which is the first of Metal, CUDA
            and CPU that is there.
        device: which of the backend's devices, such as ``"hologram:1"`` or 1. By default the
            current one (``torch.hologram.device``) if it is of that backend, else the first.

    Raises:
        TypeError: ``backend`` is no string, or ``device`` no device.
        ValueError: there is no backend of that name at all, or the device is of another backend or
            type.
        RuntimeError: the backend or the device is not there.
    """

    __slots__ = ("__weakref__", "_backend", "_buffers", "_device", "_open")

    def __init__(self, backend: str | BackendType = "auto", device: Device = None) -> None:
        self._open = False
        lazy_init()
        self._backend, index = locate(backend, device)
        self._device = torch.device(DEVICE_TYPE, index)
        self._buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._open = True

    @property
    def backend(self) -> str:
        """``"cpu"``, ``"cuda"`` or ``"metal"``."""
        return self._backend.value

    @property
    def device(self) -> torch.device:
        """The torch device that the buffers are on."""
        return self._device

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has been called."""
        return not self._open

    def allocate(self, n: int, dtype: npt.DTypeLike = np.float32) -> Buffer:
        """Returns a buffer of ``n`` elements, all zero.

        Raises:
            ValueError: ``n`` is negative.
            TypeError: ``n`` is no integer, or torch has no such dtype.
            torch.OutOfMemoryError: there is not enough memory.
            RuntimeError: the executor is closed.
        """
        self._check_open()
        n = _index("n", n)
        if n < 0:
            raise ValueError(f"a buffer has 0 elements or more, not {n}")
        torch_type = torch_dtype(dtype)
        with torch.inference_mode(False):  # else it could not be written outside of the mode
            return self._buffer_over(
                torch.zeros(n, dtype=torch_type, device=self._device), own=True
            )

    def allocate_boundary(
        self, cls: int, width: int, height: int, dtype: npt.DTypeLike = np.float32
    ) -> Buffer:
        """Returns a buffer of ``width * height`` bytes in one class of the boundary pool, all zero.

        Args:
            cls: the class, 0 to 95.
            width: pages, 1 to 48.
            height: bytes of a page, 1 to 256.
            dtype: of the elements, whose size divides ``width * height``.

        Raises:
            ValueError: the class, ``width`` or ``height`` is out of range, the bytes are no whole
                number of elements, or the class has no such run of free pages: the message says how
                many it has.
            TypeError: an argument is no integer, or torch has no such dtype.
            torch.OutOfMemoryError: the device has no boundary pool and no room for it.
            RuntimeError: the executor is closed.
        """
        self._check_open()
        cls, width, height = _index("cls", cls), _index("width", width), _index("height", height)
        for what, value, low, high in (
            ("class", cls, 0, boundary.CLASSES - 1),
            ("width", width, 1, boundary.PAGES),
            ("height", height, 1, boundary.PAGE_BYTES),
        ):
            if not low <= value <= high:
                raise ValueError(
                    f"boundary {what} {value} is out of range: it must be from {low} to {high}"
                )
        torch_type, nbytes = torch_dtype(dtype), width * height
        if nbytes % torch_type.itemsize != 0:
            raise ValueError(
                f"{width} pages of {height} bytes are {nbytes} bytes, no whole number of "
                f"{np.dtype(dtype)}"
            )
        assert self._device.index is not None
        with torch.inference_mode(False):
            data = _C.boundary_tensor(self._device.index, cls, nbytes).view(torch_type)
            return self._buffer_over(data.zero_(), own=True)

    def tensor_to_dlpack(self, tensor: Buffer | torch.Tensor) -> Any:
        """Returns a DLPack capsule of a buffer or a tensor, which shares its memory.

        Raises:
            TypeError: ``tensor`` is neither.
            BufferError: DLPack cannot express the tensor, or it requires grad.
            RuntimeError: the executor or the buffer is closed.
        """
        self._check_open()
        if not isinstance(tensor, (Buffer, torch.Tensor)):
            raise TypeError(f"expected a Buffer or a tensor, got {type(tensor).__name__}")
        return tensor.__dlpack__()

    def synchronize(self) -> None:
        """Waits until all work on the device is done.

        Raises:
            RuntimeError: the executor is closed; or what a recorded operation has failed with.
        """
        self._check_open()
        devices.synchronize(self._device)

    def close(self) -> None:
        """Closes the executor and the buffers it has allocated. May be called twice.

        Tensors, arrays and capsules made of a buffer keep its memory.
        """
        if self._open:
            self._open = False
            for buffer in list(self._buffers):
                buffer.close()

    def __repr__(self) -> str:
        state = "" if self._open else ", closed"
        return f"Executor(backend={self.backend!r}, device={str(self._device)!r}{state})"

    def _buffer_over(self, data: torch.Tensor, own: bool = False) -> Buffer:
        """A buffer that shares a contiguous tensor of one dimension on the device."""
        buffer = Buffer(self, data, own)
        self._buffers.add(buffer)
        return buffer

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("the executor is closed")


class Buffer(_C.HostView, _Closing):
    """Elements of one dtype in device memory. :meth:`Executor.allocate` makes buffers.

    On the CPU backend a buffer has the buffer protocol: ``memoryview(buffer)`` and
    ``numpy.asarray(buffer)`` share its memory, for as long as they live. What is shared cannot be
    recorded, so operations on the buffer run at once from then on.

    Every method raises ``RuntimeError`` once the buffer, or its executor, is closed, and the buffer
    protocol ``BufferError``.
    """

    # Of the open buffer; after close() `_tensor` is None and `_f32`, `_i32` are -1.
    _tensor: torch.Tensor | None
    _array: npt.NDArray[Any]  # its memory, for _memory(); without elements where not _shared
    _shared: bool  # the memory is the host's
    _address: int  # of that memory
    _f32: int  # the length where elements are float32, else -1: what hg.ops asks first
    _i32: int
    _own: bool  # the memory was allocated for it: two of these do not overlap

    def __init__(self, executor: Executor, data: torch.Tensor, own: bool = False) -> None:
        """``data``: a contiguous tensor of one dimension on the executor's device, shared."""
        super().__init__()
        self._executor = executor
        self._own = own
        self._tensor = data
        self._shape = tuple(data.shape)
        self._address = address_of(data)
        self._shared = _C.is_host_addressable(data.device.index)
        self._array = _host_array(data) if self._shared else np.empty(0, numpy_dtype(data.dtype))
        self._f32 = data.numel() if data.dtype == torch.float32 else -1
        self._i32 = data.numel() if data.dtype == torch.int32 else -1

    # ---- what it is ----

    @property
    def executor(self) -> Executor:
        """The executor that allocated it."""
        return self._executor

    @property
    def size(self) -> int:
        """Elements."""
        return self._shape[0]

    def __len__(self) -> int:
        return self._shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements, in NumPy's terms."""
        return self._array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self._array.dtype.itemsize * self._shape[0]

    @property
    def pool(self) -> str:
        """Where the memory comes from: ``"boundary"`` or ``"linear"``."""
        return "linear" if self.class_index is None else "boundary"

    @property
    def class_index(self) -> int | None:
        """The class in the boundary pool, or ``None`` in the linear pool."""
        place = boundary.locate(self._data())
        return None if place is None else place.class_index

    @property
    def closed(self) -> bool:
        """Whether the buffer is closed."""
        return self._tensor is None

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"backend={self._executor.backend!r}"
        return f"Buffer({self.size}, dtype={self.dtype}, {state})"

    # ---- copies ----

    def from_numpy(self, array: np.ndarray[Any, Any]) -> None:
        """Copies an array in, of any shape with as many elements, row by row.

        Raises:
            TypeError: ``array`` is no array, or of another dtype.
            ValueError: it has another number of elements.
        """
        tensor = self._tensor
        if tensor is None:
            self._raise_closed()
        _synchronize(tensor)
        if address_of(tensor) != self._address:
            self._follow(tensor)
        memory = self._array  # as of _memory(), without the call: small writes are all calls
        try:
            fits = array.shape == self._shape and array.dtype == memory.dtype
        except AttributeError:
            raise TypeError(f"expected a numpy array, got {type(array).__name__}") from None
        if not fits:
            array = self._flat(array)
        if self._shared:
            memory[...] = array
        else:
            tensor.copy_(torch.from_numpy(array.copy()))

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Returns a copy as an array of one dimension."""
        copy: npt.NDArray[Any]
        copy = self._memory().copy() if self._shared else self._data().cpu().numpy()
        return copy

    def from_bytes(self, data: bytes | bytearray | memoryview) -> None:
        """Copies bytes in, in the byte order of the machine.

        Raises:
            TypeError: ``data`` has no bytes.
            ValueError: it has another number of bytes than the buffer.
        """
        memory = self._memory() if self._shared else self._array
        self._check_open()
        view = memoryview(data)
        if view.nbytes != self.nbytes:
            raise ValueError(f"{view.nbytes} bytes for a buffer of {self.nbytes} bytes")
        source = np.frombuffer(view, dtype=np.uint8)
        if self._shared:
            memory.view(np.uint8)[:] = source
        else:
            self.from_numpy(source.view(self.dtype))

    def to_bytes(self) -> bytes:
        """Returns a copy as bytes, in the byte order of the machine."""
        return self._memory().tobytes() if self._shared else self.to_numpy().tobytes()

    def fill(self, value: float | complex) -> None:
        """Gives every element a value.

        Raises:
            TypeError: ``value`` is no number.
            RuntimeError: the dtype cannot hold the value.
        """
        self._data().fill_(self._held(value))

    def _held(self, value: Any) -> Any:
        """The value, if it is one that integers and bools do not change: torch would cut it off."""
        kind = self._array.dtype
        if kind.kind in "iub" and isinstance(value, (int, float, np.integer, np.floating)):
            low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
            if not low <= value <= high or value != int(value):
                raise RuntimeError(f"a buffer of {kind} cannot hold {value!r}")
        return value

    def copy_to(self, other: Buffer) -> None:
        """Copies all elements to a buffer of the same length and dtype.

        Raises:
            TypeError: ``other`` is no buffer, or of another dtype.
            ValueError: it has another length.
        """
        if not isinstance(other, Buffer):
            raise TypeError(f"expected a Buffer, got {type(other).__name__}")
        if other.dtype != self.dtype:
            raise TypeError(f"cannot copy a buffer of {self.dtype} to one of {other.dtype}")
        if other.size != self.size:
            raise ValueError(
                f"cannot copy a buffer of {self.size} elements to one of {other.size} elements"
            )
        other._data().copy_(self._data())

    # ---- shared memory ----

    def as_ptr(self) -> int:
        """Returns the address of the first element, 0 where there is none.

        What is recorded of the memory has run, and operations on it run at once from now on. The
        memory is the buffer's: the address is good until the buffer is closed or a tensor that
        shares it is resized.

        Raises:
            RuntimeError: the memory is not the host's.
        """
        if not self._shared:
            raise RuntimeError(f"the memory of {self._data().device} is not the host's")
        self._memory()
        _C.export_tensor(self._data())
        return self._address

    def as_mut_ptr(self) -> int:
        """Returns the same as :meth:`as_ptr`: the memory may be written."""
        return self.as_ptr()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        # NumPy asks where the buffer protocol has refused; it would make an array of this object.
        device = self._data().device
        if copy:
            return self.to_numpy().astype(dtype or self.dtype, copy=False)
        raise TypeError(
            f"the memory of {device} is not the host's: np.asarray(buffer) cannot share it; "
            "copy with Buffer.to_numpy()"
        )

    def __dlpack__(self, **options: Any) -> Any:
        return self._data().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self._data().__dlpack_device__()

    def _expose(self) -> tuple[torch.Tensor, int, str, int, int]:
        """What the buffer protocol needs; the views keep the first."""
        # A CPU tensor keeps these bytes, also where a tensor that shares them is resized.
        address, kind = self.as_ptr(), self._array.dtype
        owner = _C.alias_as_cpu(self._data())
        return owner, address, self._array[:0].data.format, kind.itemsize, self.size

    # ---- the end ----

    def close(self) -> None:
        """Gives the memory back, as soon as nothing shares it. May be called twice.

        What the buffer protocol has shared is given back with the last view and this object.
        """
        self._tensor = None
        self._array = np.empty(0, self._array.dtype)
        self._f32 = self._i32 = -1

    # ---- inside ----

    def _check_open(self) -> None:
        if self._tensor is None:
            self._raise_closed()

    def _data(self) -> torch.Tensor:
        tensor = self._tensor
        if tensor is None:
            self._raise_closed()
        return tensor

    def _memory(self) -> npt.NDArray[Any]:
        """The memory, when all that is recorded of it has run."""
        tensor = self._tensor
        if tensor is None:
            self._raise_closed()
        _synchronize(tensor)
        if address_of(tensor) != self._address:
            self._follow(tensor)
        return self._array

    def _follow(self, tensor: torch.Tensor) -> None:
        # A tensor that shares the memory was resized.
        if tensor.untyped_storage().nbytes() < self.nbytes:
            raise RuntimeError(
                f"the memory of the buffer of {self.size} elements of {self.dtype} was given away: "
                "the storage of a tensor that shares it was made smaller"
            )
        self._address = address_of(tensor)
        self._array = _host_array(tensor)

    def _raise_closed(self) -> NoReturn:
        raise RuntimeError(f"the buffer of {self.size} elements of {self.dtype} is closed")

    def _flat(self, array: Any) -> np.ndarray[Any, Any]:
        if not isinstance(array, np.ndarray):  # has a shape and a dtype nevertheless
            hint = ": hg.tensor_to_buffer takes tensors" if isinstance(array, torch.Tensor) else ""
            raise TypeError(f"expected a numpy array, got {type(array).__name__}{hint}")
        if array.dtype != self._array.dtype:
            raise TypeError(f"an array of {array.dtype} for a buffer of {self._array.dtype}")
        if array.size != self.size:
            raise ValueError(f"{array.size} elements for a buffer of {self.size} elements")
        return array.reshape(-1)


def _host_array(data: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's memory as an array, which does not keep it."""
    kind = numpy_dtype(data.dtype)
    if data.numel() == 0:
        return np.empty(0, kind)
    memory = (ctypes.c_char * (data.numel() * kind.itemsize)).from_address(address_of(data))
    array: npt.NDArray[Any] = np.ndarray(data.shape, kind, memoryview(memory))
    return array


def _index(what: str, value: Any) -> int:
    try:
        return int(value.__index__())
    except AttributeError:
        raise TypeError(f"{what} must be an integer, not {type(value).__name__}") from None
