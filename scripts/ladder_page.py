"""Write the page of a ladder, for scripts/results_pages.py."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from highrank_plugins.reports.tables import to_markdown
from highrank_plugins.studies.ladder import read_ladder
from highrank_plugins.studies.ladder_table import judge, of_records

DOCS = Path(__file__).parents[1] / "docs"


def ladder_page(name: str, of: Mapping[str, Any]) -> str:
    """Return the page of a ladder, of the sizes and arms that have records."""
    records = sorted((DOCS / "records" / name).glob("*.json"))
    ladder = read_ladder(DOCS.parent / of["file"])
    base, names = ladder.settings.baseline, {path.stem.rpartition("-")[0] for path in records}
    sizes = {n: size for n, size in ladder.sizes.items() if f"{base}_{n}" in names}
    arms = [name for name in ladder.arms if f"{name}_{next(iter(sizes))}" in names]
    ladder = replace(ladder, sizes=sizes, arms=arms)
    table, _ = judge(ladder, of_records(ladder, records))
    parts = [f"# {of['title']}", of["question"], of["setting"]]
    rows = to_markdown([replace(table, notes=[])]).strip()
    notes = [f"- {note}" for note in table.notes]
    parts += [f"```bash\nhighrank ladder {of['file']}\n```", rows, "\n".join(notes)]
    parts.append(of["found"].strip())
    return "\n\n".join(parts) + "\n"
