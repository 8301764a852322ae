"""Segments of a video that are encoded side by side, one thread for each."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from threading import BoundedSemaphore, Condition, Thread

from ..files import Array, naming, to_uint8
from .encoding import Encoder, even

_WAITING = 1 << 30  # bytes of pictures that wait for their encoders; one picture always may


class _Task(Thread):
    """A segment that is being encoded."""

    def __init__(self, work: Callable[["_Task"], None], temporary: Path, path: Path) -> None:
        super().__init__(target=work, args=(self,), daemon=True)
        self.temporary, self.path = temporary, path
        self.pictures: SimpleQueue[tuple[Array, int] | None] = SimpleQueue()  # None: the end
        self.ended: Future[None] = Future()


class SideBySide:
    """Encodes at most `at_once` segments at a time, while pictures arrive for the last of them.

    A file gets its name when it is complete. If an encoder fails, the next picture raises its
    error, which names the `output`.
    """

    def __init__(self, output: Path, encoder: Callable[[Path], Encoder], at_once: int) -> None:
        self._output, self._encoder = output, encoder
        self._slots = BoundedSemaphore(at_once)
        self._tasks: deque[_Task] = deque()
        self._changed, self._waiting = Condition(), 0
        self._error: BaseException | None = None
        self._stopped = False

    def begin(self, temporary: Path, path: Path) -> None:
        """Begin a segment; wait if there are too many."""
        self._slots.acquire()
        while self._tasks and self._tasks[0].ended.done():
            self._tasks.popleft()
        self._tasks.append(_Task(self._encode, temporary, path))
        self._tasks[-1].start()

    def add(self, picture: Array, number: int) -> None:
        """Add a picture to the segment; wait if those that wait take too much memory."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._has_room(picture))
            if self._error is not None:
                raise self._error
            self._waiting += picture.nbytes
        self._tasks[-1].pictures.put((picture, number))

    def end(self) -> "Future[None]":
        """End the segment; the result tells when its file is complete."""
        self._tasks[-1].pictures.put(None)
        return self._tasks[-1].ended

    def finish(self) -> None:
        """Wait for all segments."""
        for task in self._tasks:
            task.ended.result()

    def stop(self) -> None:
        """Abandon the segments that are not complete; nothing is written after that."""
        self._stopped = True
        for task in self._tasks:
            task.pictures.put(None)
            task.join()
        self._tasks.clear()

    def _has_room(self, picture: Array) -> bool:
        return not self._waiting or self._waiting + picture.nbytes <= _WAITING

    def _encode(self, task: _Task) -> None:
        """The work of a thread."""
        try:
            with naming(self._output):
                encode = self._encoder(task.temporary)
                for picture, number in iter(task.pictures.get, None):
                    if self._stopped:
                        return
                    encode(even(to_uint8(picture)), number)
                    self._change(-picture.nbytes)
                if self._stopped:
                    return
                encode.close()
                task.temporary.replace(task.path)
            task.ended.set_result(None)
        except BaseException as error:
            self._change(0, error)
            task.ended.set_exception(error)
        finally:
            self._slots.release()

    def _change(self, num_bytes: int, error: BaseException | None = None) -> None:
        with self._changed:
            self._waiting += num_bytes
            self._error = self._error or error
            self._changed.notify()
