"""A recipe whose training and translation run on two processes."""

import pytest

from tests.recipes.running import overrides, raw_text, recipe, run, stages_done

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_a_recipe_on_two_processes(tmp_path):
    data = raw_text(tmp_path / "data")
    words = ["--data", data, "--exp-dir", tmp_path / "exp", "--conf", "softmax", "--name", "a"]
    more = ["--launch=--processes 2", "--processes", 2]
    result = run(recipe("multi30k_en_de", *words, *more, settings=overrides(max_epoch=2)))
    assert result.returncode == 0, result.stderr[-3000:]
    assert stages_done(result) == [0, 1, 2, 3, 4, 5, 6]
    run_dir = tmp_path / "exp" / "multi30k_en_de" / "a"
    assert "training on 2 devices" in (run_dir / "train" / "train.log").read_text()
    assert (run_dir / "train" / "logs" / "rank1.log").stat().st_size > 0
    assert "highrank launch" in (run_dir / "train" / "command.sh").read_text()
    assert "highrank generate --processes 2" in (run_dir / "generate" / "command.sh").read_text()
    assert len((run_dir / "score" / "test.de").read_text().splitlines()) == 20
