"""Sort the tests into three tiers by their seconds.

`durations.json` holds the seconds of each function, all its cases together, that is not fast.

| `scripts/test.sh` | runs |
|---|---|
| `--fast` | functions that the file does not list |
| (nothing) | of a function above 1 s as many spread cases as take 1 s, or one; none above 5 s |
| `--all` | everything, with the tests marked long; writes the file |
"""

import json
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("durations.json")
FAST = 0.3  # seconds
SHARE, LONGEST_CASE = 1.0, 5.0  # seconds of a function, of a case in the ordinary run


def function_of(nodeid: str) -> str:
    """Return the test function of a case, without its parameters and its group of xdist."""
    return nodeid.partition("[")[0].partition("@")[0]


def listed() -> dict[str, float]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def merged(seconds: dict[str, float], entries: dict[str, float]) -> dict[str, float]:
    """Return the entries of this run, and those of files that are there and did not run."""
    found = {name: round(s, 1) for name, s in seconds.items()}
    ran = {name.partition("::")[0] for name in seconds}
    for name, s in entries.items():
        file = name.partition("::")[0]
        if file not in ran and (FILE.parent.parent / file).exists():
            found[name] = s
    return {name: s for name, s in sorted(found.items()) if s > FAST}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-long", action="store_true", help="run the long tests, too")
    parser.addoption("--fast", action="store_true", help="run the fast tests only")
    parser.addoption("--sample", action="store_true", help="run slow functions in part")
    parser.addoption("--write-durations", action="store_true", help=f"write {FILE.name}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Clock(), "clock")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    entries = listed()
    marked = {item for item in items if item.get_closest_marker("long")}
    if config.getoption("--fast"):
        slow = {item for item in items if function_of(item.nodeid) in entries}
        config.hook.pytest_deselected(items=[i for i in items if i in slow | marked])
        items[:] = [item for item in items if item not in slow | marked]
    elif not config.getoption("--run-long"):
        left_out = sampled_out(items, entries) if config.getoption("--sample") else set()
        for item in left_out | marked:
            item.add_marker(pytest.mark.skip(reason="long: bash scripts/test.sh --all"))


def sampled_out(items: list[pytest.Item], entries: dict[str, float]) -> set[pytest.Item]:
    """Return the cases of slow functions that the ordinary run leaves out."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(function_of(item.nodeid), []).append(item)
    left_out: set[pytest.Item] = set()
    for name, own in cases.items():
        seconds = entries.get(name, 0.0)
        number = len(own) if seconds <= SHARE else max(1, int(len(own) * SHARE / seconds))
        if seconds / len(own) > LONGEST_CASE:
            number = 0
        spread = {own[i * len(own) // number] for i in range(number)}
        left_out |= set(own) - spread
    return left_out


class Clock:
    """Sum the seconds of each test function, over all processes."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[function_of(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, config: pytest.Config) -> None:
        if config.getoption("--write-durations"):
            FILE.write_text(json.dumps(merged(self.seconds, listed()), indent=0) + "\n")
