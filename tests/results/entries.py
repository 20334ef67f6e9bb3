"""Find entries of published.yaml, and make records."""

from functools import cache

from highrank_plugins.results.published import Published, read_published

published = cache(read_published)
TASKS = ("ptb", "wikitext2")
TEN = "test ppl (10 seeds)"


def record_of(metrics: dict[str, float], seed: int = 1, **changes: object) -> dict[str, object]:
    """Return a record with all that tables need."""
    rest: dict[str, object] = {"seeds": [seed], "git": None, "versions": {"torch": "2"}}
    rest |= {"train": {"updates": 1, "words_per_second": 1}, "hardware": {"cores": 1}}
    return {"metrics": metrics} | rest | changes


def entry_of(task: str, system: str, source: str) -> Published:
    (found,) = [
        entry
        for entry in published(task)
        if entry.system == system and entry.source.startswith(source)
    ]
    return found


def parthiban(task: str, system: str) -> Published:
    return entry_of(task, system, "Parthiban et al. 2021")
