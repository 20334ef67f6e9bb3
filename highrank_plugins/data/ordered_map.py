"""Map a function over many items in several processes, with bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from highrank_plugins.common.processes import end_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")

# items in flight per process: enough to keep all busy, few enough for any memory
_AHEAD = 3


def ordered_map(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Iterator[Result]:
    """Yield results in the order of the items; `items` is read as results are taken.

    `multiprocessing.Pool.imap` reads all of `items` at once, which for a corpus fills the memory.
    For several processes the function is pickled with each item; 1 uses no other process.
    """
    if processes == 1:
        yield from map(work, items)
        return
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    todo = iter(items)
    with ProcessPoolExecutor(
        processes, mp_context=get_context("forkserver"), initializer=end_with_parent
    ) as pool:
        try:
            first = islice(todo, processes * _AHEAD)
            running: deque[Future[Result]] = deque(pool.submit(work, item) for item in first)
            while running:
                result = running.popleft().result()
                running.extend(pool.submit(work, item) for item in islice(todo, 1))
                yield result
        except BrokenProcessPool:
            raise OSError(
                f"one of {processes} processes was killed, perhaps for lack of memory: use "
                "fewer processes"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield runs of `size` items, the last one shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
