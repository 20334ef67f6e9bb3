"""Results come in order, items are read as they are needed, errors come through."""

import os
import signal
import subprocess
import sys
import time

import pytest

from highrank_plugins.common.processes import batches, ordered_map

pytestmark = pytest.mark.timeout(60)


def slow_when_even(number: int) -> tuple[int, int]:
    time.sleep(0.02 * (number % 2 == 0))
    return number, os.getpid()


def fails_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


@pytest.mark.parametrize("processes", [1, 2])
def test_results_keep_the_order_of_the_items(processes):
    results = list(ordered_map(slow_when_even, range(20), processes))
    assert [number for number, _ in results] == list(range(20))
    assert (os.getpid() in {pid for _, pid in results}) == (processes == 1)


def test_items_are_not_all_read_at_once():
    read = []

    def items():
        for number in range(1000):
            read.append(number)
            yield number

    results = ordered_map(slow_when_even, items(), 2)
    next(results)
    assert len(read) < 20
    results.close()


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_in_an_item_ends_the_map(processes):
    results = ordered_map(fails_at_three, range(100), processes)
    with pytest.raises(ValueError, match="three"):
        list(results)


def dies(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_reported():
    with pytest.raises(OSError, match="one of 2 processes was killed"):
        list(ordered_map(dies, range(3), 2))


ENDLESS = """
import itertools, time
from highrank_plugins.common.processes import ordered_map

for _ in ordered_map(time.sleep, itertools.repeat(0.05), 2):
    print(flush=True)
"""


def test_no_process_outlives_a_killed_main_process():
    """Whoever reads what it prints, such as a recipe's `tee`, sees the end."""
    main = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE)
    assert main.stdout is not None and main.stdout.readline()
    main.kill()
    main.stdout.read()  # ends when no process holds the pipe


def test_batches_cover_all_items():
    for count in (0, 1, 4, 5):
        found = list(batches(range(count), 2))
        assert [n for batch in found for n in batch] == list(range(count))
        assert all(len(batch) == 2 for batch in found[:-1])
