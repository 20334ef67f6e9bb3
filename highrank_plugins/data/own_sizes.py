"""Choose the size of a model by its text, from the table `sizes.yaml` of a recipe."""

from math import ceil
from pathlib import Path
from typing import Any

import yaml

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.own_text import TextCounts

_TEXT = "data.vocab_size"


def choose_size(
    table: Path, counts: TextCounts, wanted: str, units: str = "pieces"
) -> tuple[str, str, dict[str, Any]]:
    """Return the size, the reason, and the options over the configuration of a layer.

    `units` are words or pieces. `auto` takes the first size whose bounds `below` the text is below,
    in lines and units. There are at least as many updates as `epochs` take.
    """
    sizes: dict[str, Any] = yaml.safe_load(table.read_text(encoding="utf-8"))
    if wanted not in {"auto", *sizes}:
        raise UserError(
            f"--size {wanted}: expected auto, {', '.join(sizes)}{did_you_mean(wanted, sizes)}"
        )
    number = counts.words + counts.lines if units == "words" else counts.pieces
    fitting = [
        name
        for name, size in sizes.items()
        if counts.lines < size["below"]["lines"] and number < size["below"]["pieces"]
    ]
    name = (fitting or list(sizes)[-1:])[0] if wanted == "auto" else wanted
    size = sizes[name]
    options = {**size["set"], "words": size.get("words")}
    said = [f"{counts.lines:,} lines with {'' if units == 'words' else 'about '}{number:,} {units}"]
    if wanted == "auto" and fitting:
        below = size["below"]
        said.append(f"below {below['lines']:,} lines and {below['pieces']:,} {units}")
    elif wanted != "auto":
        said.append("as --size says")
    pieces = options.pop(_TEXT, None)
    if pieces is not None and units == "pieces":
        options[_TEXT] = _pieces(pieces, counts)
    if "max_epoch" in options:  # of streams: a short text has few updates in all
        updates = options["max_epoch"] * number // (options["batch_size"] * options["bptt"])
        options["warmup_updates"] = min(options["warmup_updates"], updates // 4)
    if "max_update" in options:
        epochs = ceil(size["epochs"] * number / options["max_tokens"] / 100) * 100
        options["max_update"] = max(options["max_update"], epochs)
        options["total_num_update"] = options["max_update"]
    return name, "; ".join(said), options


def _pieces(wanted: int, counts: TextCounts) -> int:
    """Return as many pieces as the lines and words carry, and more than the text has letters."""
    most = min(wanted, int(counts.lines / 1.5), len(counts.different | counts.letters))
    return max(most, ceil(1.5 * len(counts.letters)) + 4) // 10 * 10
