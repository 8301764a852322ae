"""Pairs of frames, one after the other or several at a time."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

from torch import Tensor

from ..estimation.sequence import FlowSequence
from ..files import Array
from .threads import Workers

Answer: TypeAlias = Future[Tensor]
Item = TypeVar("Item")


class Pairs:
    """The flow of pairs; a frame that two pairs share passes through the feature net once.

    There is a sequence for each size of frames, of the last `sizes` of them. In a `with` block,
    several pairs are estimated at a time where that is faster, but no more than `at_most`.
    """

    def __init__(
        self, first: FlowSequence, at_most: int | None = None, sizes: int | None = None
    ) -> None:
        self._first, self._at_most, self._sizes = first, at_most, sizes
        self._by_size: OrderedDict[tuple[int, ...], tuple[FlowSequence, int]] = OrderedDict()
        self._last: tuple[FlowSequence, Array, Answer] | None = None  # a frame, prepared
        self._workers, self._open = Workers(), False

    def __enter__(self) -> "Pairs":
        self._open = True
        return self

    def __exit__(self, *error: object) -> None:
        self._open, self._last = False, None
        self._workers.close()

    def begin(self, image1: Array, image2: Array) -> Answer:
        """Begin to estimate a pair; the result is that of `FlowSequence.advance`."""
        sequence, at_once = self._find(image1)
        if self._open:
            self._workers.start(at_once)
        do = self._workers.alone if at_once < self._workers.count else self._workers.do
        last, self._last = self._last, None
        if last is not None and last[0] is sequence and last[1] is image1:
            before = last[2]
        else:
            before = do(sequence.prepare, image1)
        after = do(sequence.prepare, image2)
        self._last = (sequence, image2, after)
        return do(_match, sequence, before, after)

    def in_turn(self, begun: Iterable[Item]) -> Iterator[Item]:
        """Yield what was begun, in order, each when as many later ones are begun as may run.

        None stands for nothing: it comes at once, after all before it. If `begun` fails, what it
        gave before comes first.
        """
        waiting: deque[Item] = deque()
        try:
            for item in begun:
                waiting.append(item)
                while len(waiting) > (0 if item is None else self._workers.count):
                    yield waiting.popleft()
        except Exception:
            yield from waiting
            raise
        yield from waiting

    def _find(self, image: Array) -> tuple[FlowSequence, int]:
        """The sequence of a size, and how many pairs of it to estimate at a time."""
        if image.shape not in self._by_size:
            sequence = self._first.fresh() if self._by_size else self._first
            at_once = sequence.at_once((image.shape[0], image.shape[1]))
            if self._at_most is not None:
                at_once = min(at_once, self._at_most)
            self._by_size[image.shape] = (sequence, at_once)
            if self._sizes is not None and len(self._by_size) > self._sizes:
                self._by_size.popitem(last=False)
        self._by_size.move_to_end(image.shape)
        return self._by_size[image.shape]


def _match(sequence: FlowSequence, before: Answer, after: Answer) -> Tensor:
    return sequence.match(before.result(), after.result())
