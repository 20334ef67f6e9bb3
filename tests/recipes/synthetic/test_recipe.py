"""Run the recipe of SpamLang with a stand-in for Python."""

import shutil

import pytest

from tests.recipes.running import RECIPES, run, write_program

STAND_IN = """\
#!/usr/bin/env bash
echo "$*" >>"$HIGHRANK_CALLS"
until [[ $1 == --output ]]; do shift; done
if [[ ${HIGHRANK_FAILS-} ]]; then exit "$HIGHRANK_FAILS"; fi
echo record >"$2"
echo "| M | d |"
"""


@pytest.fixture
def recipe(tmp_path):
    """Return a function that runs a copy of the recipe, and returns the result and its calls."""
    for name in ("lib", "synthetic"):
        shutil.copytree(RECIPES / name, tmp_path / "recipes" / name)
    for name in ("highrank", "python"):
        write_program(tmp_path / ".venv" / "bin" / name, STAND_IN)
    calls = tmp_path / "calls"

    def recipe(*words: str, code: int = 0, **environment: str):
        calls.write_text("")
        script = tmp_path / "recipes" / "synthetic" / "run.sh"
        command = ["bash", script, "--exp-dir", tmp_path / "exp", *words]
        result = run(command, code, HIGHRANK_CALLS=str(calls), **environment)
        return result, calls.read_text().splitlines()

    recipe.run = tmp_path / "exp" / "synthetic" / "small"
    return recipe


def test_it_trains_the_grid_then_writes_the_table_and_wrong_use_runs_nothing(recipe):
    result, calls = recipe("--set", "lr", code=2)
    assert "--set 'lr': write --set KEY=VALUE" in result.stderr
    result, more = recipe("--stage", "1", code=2)
    assert "start with --stage 0" in result.stderr
    assert calls == more == [] and not recipe.run.parent.exists()
    _, calls = recipe(HIGHRANK_FAILS="2", code=2)  # a refused grid ends the recipe
    assert len(calls) == 1 and not (recipe.run / "table.md").exists()
    result, (train, show) = recipe("--set", "backward_rank=4", "--set", "heads=moc,mos")
    assert "conf/small.yaml --backward-rank=4 --heads=moc,mos --output" in train
    assert "--table-only" not in train
    assert "--table-only --plot exp/synthetic/small/steps.svg" in show
    assert (recipe.run / "table.md").read_text() == "| M | d |\n"
    assert (recipe.run / "results.json").exists()
    assert result.stdout == "exp/synthetic/small/table.md\n"
    assert len(recipe("--stage", "1")[1]) == 1
