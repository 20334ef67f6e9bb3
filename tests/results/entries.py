"""Find entries of published.yaml, and make records."""

from functools import cache

from highrank_plugins.results.published import Published, read_published

published = cache(read_published)
TASKS = ("ptb", "wikitext2")
TEN = "test ppl (10 seeds)"


def record_of(metrics: dict[str, float], seed: int = 1, **changes: object) -> dict[str, object]:
    return {"metrics": metrics, "seeds": [seed]} | changes


def entry_of(task: str, system: str, source: str) -> Published:
    (found,) = [
        entry
        for entry in published(task)
        if entry.system == system and entry.source.startswith(source)
    ]
    return found


def parthiban(task: str, system: str) -> Published:
    return entry_of(task, system, "Parthiban et al. 2021")
