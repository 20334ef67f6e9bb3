"""The size of each room may only fall, and no refusal is lost without a reason.

`python scripts/house_figures.py` prints what is compared here. After a change that shrinks a room,
lower its budget. A new or reworded refusal is a row of refusals.tsv:

    python scripts/house_figures.py --refusals > tests/refusals.tsv

A refusal that goes becomes a row of struck_refusals.tsv, with its reason.
"""

import importlib.util
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# lines of Python today; each may only fall
BUDGETS: dict[str, int] = {
    "analysis": 1424,
    "benchmarks": 1263,
    "cli": 3112,
    "common": 2658,
    "compat": 364,
    "criterions": 258,
    "data": 2041,
    "evaluation": 269,
    "heads": 2916,
    "hooks": 2596,
    "huggingface": 681,
    "inference": 1027,
    "losses": 4700,
    "measures": 1729,
    "models": 1508,
    "optim": 343,
    "own_layers": 803,
    "reports": 1821,
    "results": 2124,
    "studies": 2334,
    "tasks": 524,
    "top": 70,
    "training": 2170,
    "trunks": 333,
}
LINES_OF_TESTS = 32384


@pytest.fixture(scope="module")
def figures():
    path = TESTS.parent / "scripts" / "house_figures.py"
    spec = importlib.util.spec_from_file_location("house_figures", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(name: str) -> list[tuple[str, ...]]:
    lines = (TESTS / name).read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines]


def test_no_room_grows(figures):
    found = figures.lines_by_room()
    assert found.keys() == BUDGETS.keys()
    grown = {room: lines for room, lines in found.items() if lines > BUDGETS[room]}
    assert not grown, f"lines above the budget: {grown}"
    assert figures.lines_of(sorted(TESTS.rglob("*.py"))) <= LINES_OF_TESTS


def test_no_module_is_too_small(figures):
    """A module has 100 lines, or is one repair or registered thing."""
    # own layers of earlier days import it
    assert figures.crumbs() == ["heads/logit_head.py"]


def test_refusals_are_listed(figures):
    listed, found = set(rows("refusals.tsv")), set(figures.refusals())
    assert found - listed == set(), "new refusals: list them"
    assert listed - found == set(), "lost refusals: strike them with a reason"


def test_struck_refusals_have_a_reason_and_are_gone(figures):
    messages = {message for _, _, message in figures.refusals()}
    struck = rows("struck_refusals.tsv")
    assert struck and all(len(row) == 2 and len(row[1]) > 10 for row in struck)
    assert [message for message, _ in struck if message in messages] == []
