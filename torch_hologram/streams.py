"""Streams and events."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from torch_hologram import _C
from torch_hologram._device import DEVICE_TYPE, device_index, lazy_init

if TYPE_CHECKING:
    from torch_hologram._device import Device

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "get_stream_from_external",
    "is_current_stream_capturing",
    "set_stream",
    "stream",
]


class Stream(torch.Stream):
    """A sequence of operations that a device runs in the order they were issued.

    Args:
        device: where the stream is, by default the current device.
        priority: lower numbers are more urgent. What is below :meth:`priority_range` counts as its
            lower end, as in torch.cuda. On the CPU nothing overtakes: programs run in the order in
            which they were recorded.
        stream_id, device_index, device_type: the parts of an existing stream, to wrap it.

    Raises:
        RuntimeError: the priority is above 0.
    """

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        lazy_init()
        if priority > 0:
            raise RuntimeError(
                f"Expected {DEVICE_TYPE} stream priority to be less than or equal to 0, "
                f"got {priority}"
            )
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        where = torch.device(DEVICE_TYPE, device_index(device))
        return super().__new__(cls, device=where, priority=priority, **kwargs)

    @property
    def priority(self) -> int:
        """0, or -1 for a stream that is more urgent."""
        return _C.stream_priority(self.device_index, self.stream_id)

    @property
    def cuda_stream(self) -> int:
        """The handle of the CUDA stream that it is, 0 for the default one; on CUDA devices.

        ``torch.cuda.ExternalStream(stream.cuda_stream)`` is the same stream to torch's CUDA.
        :func:`get_stream_from_external` goes the other way.

        Raises:
            AttributeError: the device's streams are not CUDA's.
        """
        if _C.device_properties(self.device_index)["backend"] != "cuda":
            raise AttributeError(f"{self!r} has no CUDA stream: its device is not of CUDA's")
        return _C.stream_handle(self.device_index, self.stream_id)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Returns the least and the most urgent priority, (0, -1)."""
        return 0, -1

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records an event, by default a new :class:`Event`, after what was issued so far."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"torch.hologram.Stream(device={self.device}, stream_id={self.stream_id})"


class Event(torch.Event):
    """A point in a stream that can be waited for, asked about and timed.

    Args:
        enable_timing: whether :meth:`elapsed_time` works with this event.
        blocking: whether :meth:`synchronize` may sleep; kept for torch.cuda's sake.
        interprocess, external: for events that other processes or libraries wait for; there are
            none.

    Raises:
        NotImplementedError: ``interprocess`` or ``external`` is true.
    """

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Event:
        lazy_init()
        if interprocess or external:
            raise NotImplementedError(
                f"{DEVICE_TYPE} events are known to this process alone: what is sent to another "
                "process has been computed, so that it has nothing to wait for"
            )
        return super().__new__(
            cls, device=DEVICE_TYPE, enable_timing=enable_timing, blocking=blocking
        )

    def record(self, stream: torch.Stream | None = None) -> None:
        """Records the event after what was issued to a stream, by default the current one."""
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Makes later work of a stream, by default the current one, wait for the event."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, other: torch.Event) -> float:
        """Returns the milliseconds from this event to a later one.

        Raises:
            RuntimeError: one of the two was not recorded, or was made without ``enable_timing``.
            ValueError: the other event is of another device type.
        """
        # torch.Event's own method refuses subclasses of torch.Event for `other`.
        if other.device.type != DEVICE_TYPE:
            raise ValueError(
                f"Expected an event of a {DEVICE_TYPE} device, but got: {other.device}"
            )
        return _C.event_elapsed_time(self.event_id, other.event_id)


def current_stream(device: Device = None) -> Stream:
    """Returns the stream that is current on a device, by default on the current one."""
    return _wrap(_C.current_stream(device_index(device)))


def default_stream(device: Device = None) -> Stream:
    """Returns the stream a device, by default the current one, starts with."""
    return _wrap(_C.default_stream(device_index(device)))


def get_stream_from_external(data_ptr: int, device: Device = None) -> Stream:
    """Returns the stream that has a native handle.

    On a CUDA device that is a ``cudaStream_t``, of any library's stream of the device, such as
    ``torch.cuda.Stream().cuda_stream``. It has to live until the work that the device is given on
    it has been waited for. Elsewhere it is the ``stream_id`` of one of the device's streams.

    Args:
        data_ptr: the handle, ``torch.Stream.native_handle``; 0 is the default stream.
        device: where the stream is, by default the current device.

    Raises:
        RuntimeError: the device has no such stream.
    """
    lazy_init()
    stream = _wrap(_C.stream_of_handle(device_index(device), data_ptr))
    stream.query()  # asks the device whether it knows the stream
    return stream


def is_current_stream_capturing() -> bool:
    """Returns whether a CUDA graph is being captured on the current stream.

    Work of the device cannot be part of one and is refused meanwhile. What records without running
    is not captured: elsewhere than on a CUDA device it is ``False``.
    """
    return _C.is_initialized() and _C.is_stream_capturing(device_index(None))


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream and its device current; prefer :func:`stream` in a ``with`` statement.

    Args:
        stream: ``None`` changes nothing. A ``torch.cuda.Stream`` is one of the hologram device that
            its device is.

    Raises:
        TypeError: ``stream`` is no stream.
        RuntimeError: it is one of another device, or the device has no such stream.
    """
    _check(stream)
    if stream is not None:
        _C.set_stream(stream.stream_id, stream.device_index, stream.device_type)


class StreamContext:
    """Context manager that makes a stream and its device current.

    Args:
        stream: ``None`` changes nothing. A ``torch.cuda.Stream`` is one of the hologram device that
            its device is.

    Raises:
        TypeError: ``stream`` is no stream.
        ValueError: on entry, if it is one of another device.
        RuntimeError: on entry, if the device has no such stream.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        _check(stream)
        self.stream = stream
        self._previous: list[tuple[tuple[int, int, int], Stream]] = []

    def __enter__(self) -> None:
        if self.stream is not None:
            its = self.stream.device_index, self.stream.device_type
            index = _C.device_of_streams(*its)
            stream = current_stream(self.stream.device if index < 0 else index)
            self._previous.append((_C.set_stream(self.stream.stream_id, *its), stream))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.stream is not None:
            devices, stream = self._previous.pop()
            set_stream(stream)
            _C.set_current_devices(devices)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Returns a context manager that makes a stream and its device current; see StreamContext."""
    return StreamContext(stream)


def _check(stream: object) -> None:
    if stream is not None and not isinstance(stream, torch.Stream):
        raise TypeError(f"expected a torch.Stream or None, got {type(stream).__name__}: {stream!r}")


def _wrap(parts: tuple[int, int, int]) -> Stream:
    stream_id, index, device_type = parts
    return Stream(stream_id=stream_id, device_index=index, device_type=device_type)
