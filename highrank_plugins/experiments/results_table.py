"""Records of runs as a Markdown table, so that no number in a document is typed by hand."""

import json
from pathlib import Path
from typing import Any

HEADER = (
    "| run | sacreBLEU | chrF | updates | words/s in training | cores | torch | revision |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


class RecordError(ValueError):
    """A file is no record of a run."""


def results_table(paths: list[Path]) -> str:
    """One row per record (written by `highrank record`), named by its file.

    Raises:
        RecordError: a file that is no record; names it and what it lacks.
    """
    return HEADER + "".join(_row(path) for path in paths)


def _row(path: Path) -> str:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        metrics, train = record["metrics"], record["train"]
        cells = [
            path.stem,
            f"{metrics['sacrebleu']:.2f}",
            f"{metrics['chrf']:.2f}",
            f"{train['updates']:,.0f}",
            f"{train['words_per_second']:,.0f}",
            str(record["hardware"]["cores"]),
            record["versions"]["torch"],
            (record["git"] or {}).get("revision", "-")[:9],
        ]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: no record of a run ({error!r})") from None
    return f"| {' | '.join(cells)} |\n"
