"""Check every study that recipes ship: members of distinct names, configurations that exist."""

from pathlib import Path

import pytest

from highrank_plugins.studies.definition import read_study
from highrank_plugins.studies.members import find_configuration
from highrank_plugins.training import configuration

ROOT = Path(__file__).parents[2]
STUDIES = sorted(ROOT.glob("recipes/*/studies/*.yaml"))


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: f"{file.parts[-3]}/{file.stem}")
def test_every_shipped_study_is_valid(file):
    study = read_study(file)
    assert study.recipe == file.parents[1]
    assert study.settings.baseline in {member.system for member in study.members}
    texts = []
    for member in study.members:
        sets = [f"{name}={value}".lower() for name, value in member.changes.items()]
        settings = configuration.load(
            find_configuration(study.recipe, member.conf), [*sets, f"seed={member.seed}"]
        )
        texts.append((settings.text(), str(member.match)))
    assert len({*texts}) == len(texts)
    assert f"`recipes/{study.recipe.name}/studies/{file.name}`" in (
        ROOT / "docs" / "howto" / "studies.md"
    ).read_text(encoding="utf-8")
