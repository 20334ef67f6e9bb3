"""The commands of `highrank`: a frozen list, and a file that uses each of them.

A new command needs a user: a recipe, a script or a page. Hidden commands are for recipes.
"""

from pathlib import Path

import pytest
import typer

from highrank_plugins.cli import HIDDEN, app

ROOT = Path(__file__).parents[2]
MEASURE = "docs/howto/measure.md"
VISIBLE = {
    "data clean-texts": "scripts/measure_data_path.sh",
    "data pieces": "docs/start/first_training.md",
    "data binarise": "recipes/lib/translation.sh",
    "launch": "docs/howto/clusters.md",
    "evaluate generate": "recipes/lib/translation.sh",
    "evaluate score": "recipes/lib/translation.sh",
    "evaluate dynamic": "docs/howto/adaptive_evaluation.md",
    "evaluate cache": "docs/howto/adaptive_evaluation.md",
    "analyse card": "docs/howto/card.md",
    "analyse components": MEASURE,
    "analyse kld": MEASURE,
    "analyse predictions": MEASURE,
    "analyse retention": MEASURE,
    "analyse saturation": MEASURE,
    "analyse spectrum": MEASURE,
    "analyse unargmaxable": MEASURE,
    "analyse word-similarity": MEASURE,
    "analyse collect": MEASURE,
    "analyse spectra": MEASURE,
    "analyse compare": MEASURE,
    "analyse ttest": MEASURE,
    "analyse correlation": MEASURE,
    "analyse bleu": MEASURE,
    "compare": "docs/howto/seeds_table.md",
    "study": "docs/howto/studies.md",
    "results table": "docs/results.md",
    "results published": "recipes/lib/training.sh",
    "results record": "recipes/lib/training.sh",
    "model average": "recipes/lib/translation.sh",
    "model export": "docs/howto/publish.md",
    "model import": "docs/howto/publish.md",
    "bench loss": "docs/benchmarks.md",
    "bench train": "docs/benchmarks.md",
    "bench estimate": "docs/howto/estimate.md",
    "list archs": "docs/contributing.md",
    "list heads": "docs/howto/own_layer.md",
    "list recipes": "docs/howto/recipes.md",
    "doctor": "docs/start/install.md",
    "user-dir": "docs/start/first_training.md",
}
PLUMBING = {
    "data fetch": "recipes/lib/language_modeling.sh",
    "data check-text": "recipes/lib/translation.sh",
    "data lm-corpus": "docs/howto/corpora.md",
    "data dialogue-text": "recipes/switchboard/run.sh",
    "evaluate dialogue-score": "recipes/switchboard/run.sh",
    "results dialogue-summary": "recipes/switchboard/run.sh",
    "results lm-summary": "",  # `results record --summary` writes the same
    "results summary": "recipes/lib/translation.sh",
    "model best-checkpoint": "recipes/lib/language_modeling.sh",
    "bench table": "docs/benchmarks.md",
    "train configure": "recipes/lib/training.sh",
    "train space": "recipes/lib/training.sh",
    "match": "docs/howto/studies.md",
}


def commands():
    """Yield the name of each command, and whether it is hidden."""
    root = typer.main.get_command(app)
    for name in root.list_commands(None):
        command = root.get_command(None, name)
        for inner, found in getattr(command, "commands", {"": command}).items():
            yield f"{name} {inner}".strip(), found.hidden or name in HIDDEN


def test_the_commands_are_those_of_the_list():
    found = dict(commands())
    assert [name for name, hidden in found.items() if not hidden] == [*VISIBLE]
    assert {name for name, hidden in found.items() if hidden} == PLUMBING.keys()


@pytest.mark.parametrize("name", VISIBLE | PLUMBING)
def test_each_command_has_a_user(name):
    user = (VISIBLE | PLUMBING)[name]
    if user:
        assert f"highrank {name}" in (ROOT / user).read_text(encoding="utf-8")
