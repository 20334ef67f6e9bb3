"""A file of points needs a compute, the same arms and finite scores; perplexities are in nats."""

from math import log
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from highrank_plugins.cli import app
from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.studies.ladder import read_ladder
from highrank_plugins.studies.ladder_table import judge, of_points

MARIN = Path(__file__).parents[2] / "docs" / "howto" / "marin_softcap.yaml"


@pytest.mark.parametrize(
    ("compute", "row", "why"),
    [
        (
            "1.7e+18",
            {"softmax": 3.4},
            r"points.2.19e\+17: 2.19e\+17 has softcap, and 1.7e",
        ),
        (
            "9e+18",
            {"mos": 3.4, "softmax": 3.4},
            r"points.9e\+18: 9e\+18 has mos, and 1.7e",
        ),
        (
            "1.7e+18",
            {"softmax": 3.4, "softcap": float("nan")},
            r"points.1.7e\+18.softcap: .* finite",
        ),
        ("0", {"softmax": 3.4, "softcap": 3.3}, "points.0: expected the compute of a run, which"),
        (
            "28300000000000000000",
            {"softmax": 3, "softcap": 3},
            ".*: expected the compute of a run, which no other size has",
        ),
        ("large", {"softmax": 3, "softcap": 3}, "points.large: expected the compute of a run"),
    ],
)
def test_points_without_a_compute_or_with_other_arms_are_refused(tmp_path, compute, row, why):
    tree = yaml.safe_load(MARIN.read_text())
    tree["points"] = {str(at): of for at, of in tree["points"].items()} | {compute: row}
    (file := tmp_path / "points.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigurationError, match=rf"points.yaml:\d+: {why}"):
        read_ladder(file)


def test_points_of_perplexities_are_compared_in_nats(tmp_path):
    tree = yaml.safe_load(MARIN.read_text()) | {"metric": "test_perplexity"}
    rows = {1e18: (60.0, 50.0), 1.001e18: (54.0, 45.0), 1e19: (48.0, 40.0)}
    tree["points"] = {str(at): {"softmax": a, "softcap": b} for at, (a, b) in rows.items()}
    (file := tmp_path / "points.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    table, _ = judge(ladder := read_ladder(file), of_points(ladder))
    assert [row[0].text for row in table.rows] == ["1e+18", "1.001e+18", "1e+19", "projected"]
    assert [row[3].text for row in table.rows[:3]] == ["60.00", "54.00", "48.00"]
    assert [row[-1].values["softcap"] for row in table.rows] == pytest.approx([log(5 / 6)] * 4)
    for words in (["--records", str(tmp_path)], ["--jobs", "2"], ["--table"]):
        done = CliRunner().invoke(app, ["ladder", str(file), *words])
        assert done.exit_code == 2
        assert f"{words[0]}: changes nothing with a file of points; leave it out" in done.output
    tree["points"]["1e+18"]["softcap"] = 0.0
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigurationError, match=r"points.1e\+18: a perplexity is above 0"):
        read_ladder(file)
