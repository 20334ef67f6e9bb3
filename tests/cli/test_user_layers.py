"""The layers of docs/howto/own_layer.md as a user-dir, in fairseq's commands and in ours."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from tests.fairseq_cli import REPOSITORY, attempt, run
from tests.stream_corpus import CERTAIN, train_streams
from tests.trainings import (
    LANGUAGE_MODEL,
    NARROW,
    NARROW_LM,
    OUR_LOSS,
    TRANSLATION,
    last,
    parameters,
    same,
)

pytestmark = pytest.mark.xdist_group("user_layers")  # they share training runs
PAGE = (REPOSITORY / "docs" / "howto" / "own_layer.md").read_text()
CODE = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
(LINES,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
DOCUMENTED = LINES.replace("\\\n", "").splitlines()
TINY = ["--batch-size", 8, "--num-workers", 0]
ASKS = "pass the --user-dir of its training run"


@pytest.fixture(scope="module")
def home(tmp_path_factory, mt_data) -> Path:
    """Write a user's folder, with the package of the documentation and binarised text."""
    folder = tmp_path_factory.mktemp("home")
    write_package(folder / "my_layers", CODE)
    (folder / "data-bin").symlink_to(mt_data)
    return folder


def write_package(package: Path, code: str) -> Path:
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    return package


@pytest.fixture(scope="module")
def documented(home) -> dict[str, str]:
    """Run each line of the documentation in the user's folder, and return the output."""
    return {line: shell(line, home) for line in DOCUMENTED}


def shell(line: str, folder: Path) -> str:
    program, *words = shlex.split(line.removesuffix("…"))
    if line.endswith("…"):
        words += map(str, [*TRANSLATION, *NARROW, *OUR_LOSS, "--max-update", 12])
    return run(program.removeprefix("fairseq-"), *words, folder=folder).output


@pytest.fixture(scope="module")
def cooled(documented, home) -> Path:
    """Return the checkpoint of the documented structure and pointwise function."""
    return home / "exp" / "cooled" / "checkpoint_best.pt"


def highrank(home, *words: object) -> str:
    return run("highrank", *words, "--user-dir", home / "my_layers").output


def train(data, user_dir, save_dir, arch, updates, *options, attempt=run):
    where = ["--user-dir", user_dir, "--save-dir", save_dir, "--arch", arch]
    words = [*TRANSLATION, *NARROW, *OUR_LOSS, "--max-update", updates, *options]
    return attempt("train", data, *where, *words)


def options_of(save_dir: Path) -> dict[str, object]:
    return torch.load(last(save_dir), weights_only=True)["cfg"]["model"]


def test_the_documented_lines_run(documented, home):
    *_, generate, card, heads = documented.values()
    assert options_of(home / "exp" / "arcsinh")["head_arcsinh_c"] == 20
    options = options_of(home / "exp" / "cooled")
    names = ("head_temperature", "head_cool_bias", "head_arcsinh_c")
    assert [options[name] for name in names] == [3, False, 30]
    assert "BLEU4" in generate
    assert "card.html" in card and "arcsinh" in (home / "card.html").read_text()
    assert "tensorboardX" not in card + heads
    assert "| `cooled` | z = W g / t + b. | temperature 2.0, cool_bias true |" in heads
    assert "| `arcsinh` | f(z) = c asinh(z / c). | c 30.0 |" in heads


def test_a_users_layer_has_language_models_which_are_evaluated(
    lm_data, stream_data, home, tmp_path
):
    user_dir = ["--user-dir", home / "my_layers"]
    words = [*LANGUAGE_MODEL, *NARROW_LM, *OUR_LOSS, "--head-temperature", 3, "--max-update", 2]
    words += ["--head-monitor", 1, "--save-dir", tmp_path / "lm", "--arch", "transformer_lm_cooled"]
    assert "gradient_retention" in run("train", lm_data, *user_dir, *words).output
    words = ["--task", "language_modeling", "--tokens-per-sample", 32, *TINY, *user_dir]
    assert "Perplexity" in run("eval-lm", lm_data, "--path", last(tmp_path / "lm"), *words).output

    options = [*CERTAIN, "--max-update", 2, "--optimizer", "adam", "--lr", 0.01, *user_dir]
    train_streams(stream_data, tmp_path, *options, arch="awd_lstm_lm_arcsinh")
    where = [last(tmp_path), stream_data, "--output", tmp_path / "out.json"]
    steps = "--lr 0.01 --eps 0.001 --lambda 0.01 --train-batch-size 10".split()
    highrank(home, "evaluate", "dynamic", *where, *steps)
    cache = "--theta 0.5 --lambda 0.2 --window 9".split()
    refused = attempt("highrank", "evaluate", "cache", *where, *cache)
    assert refused.code == 2 and ASKS in refused.output
    highrank(home, "evaluate", "cache", *where, *cache)


def test_commands_take_a_users_layer_and_ask_for_its_user_dir(cooled, home, tmp_path):
    data, model, back = home / "data-bin", tmp_path / "model", tmp_path / "back.pt"
    card = ["--output", tmp_path / "card.html", "--json", tmp_path / "card.json"]
    for words in (
        ["analyse", "card", cooled, data, "--tokens", 40, *card],
        ["analyse", "collect", cooled, data, "--output", tmp_path / "maps"],
        ["measure", "spectrum", cooled, data],
        ["model", "export", cooled, "--data", data, "--output", model],
        ["model", "import", model, "--output", back],
    ):
        refused = attempt("highrank", *words)
        assert refused.code == 2 and ASKS in refused.output, words
        highrank(home, *words)
    head = json.loads((tmp_path / "card.json").read_text())["configuration"]["head"]
    assert (head["structure"], head["temperature"], head["arcsinh c"]) == ("cooled", 3.0, 30.0)
    assert (tmp_path / "maps" / "log_probs.npy").exists()
    assert "--user-dir my_layers --path" in (model / "README.md").read_text()
    assert same(parameters(back), parameters(cooled))
    options = [*TINY, "--user-dir", home / "my_layers", "--max-len-b", 5]
    texts = [run("generate", data, "--path", p, *options).lines("H-") for p in (cooled, back)]
    assert texts[0] == texts[1]
    refused = attempt("generate", data, "--path", cooled, *TINY)
    assert refused.code == 2 and ASKS in refused.output.splitlines()[-1]


@pytest.fixture(scope="module")
def arcsinh(documented, home) -> Path:
    return home / "exp" / "arcsinh" / "checkpoint_best.pt"


@pytest.fixture(scope="module")
def published(arcsinh, home) -> Path:
    folder = home / "published"
    highrank(home, "model", "export", arcsinh, "--data", home / "data-bin", "--output", folder)
    return folder


def changed(tmp_path, *pairs) -> Path:
    """Replace the package's code."""
    code = CODE
    for old, new in pairs:
        assert old in code
        code = code.replace(old, new)
    return write_package(tmp_path / "my_layers", code)


CHECK = """        if c <= 0:
            raise ValueError(f"arcsinh: c must be above 0, got {c}")
"""
NO_OPTION = [("self, c: float = 30.0", "self"), (CHECK, ""), ("self.c = c", "self.c = 5.0")]
FIXED = [*NO_OPTION, ('z / c)."""\n', 'z / c)."""\n\n    constants = ("c",)\n')]


def test_a_changed_default_does_not_change_a_checkpoint(arcsinh, home, tmp_path):
    user_dir = changed(tmp_path, ("c: float = 30.0", "c: float = 5.0"))
    card = ["--output", tmp_path / "card.html", "--json", tmp_path / "card.json"]
    run("highrank", "analyse", "card", arcsinh, "--user-dir", user_dir, *card)
    head = json.loads((tmp_path / "card.json").read_text())["configuration"]["head"]
    assert head["arcsinh c"] == 20.0
    texts = [
        run("generate", home / "data-bin", "--path", arcsinh, "--user-dir", path, *TINY).lines("H-")
        for path in (user_dir, home / "my_layers")
    ]
    assert texts[0] == texts[1]
    where = (home / "data-bin", user_dir, tmp_path, "transformer_arcsinh", 13)
    start = ["--restore-file", arcsinh]
    refused = train(*where, *start, attempt=attempt)
    assert refused.code == 2
    assert "--head-arcsinh-c 20.0 there, 5.0 in the model; use" in refused.output.splitlines()[-1]
    train(*where, *start, "--head-arcsinh-c", 20)


@pytest.mark.parametrize("code", [NO_OPTION, FIXED], ids=["no option", "a fixed number"])
def test_code_that_ignores_a_value_of_a_checkpoint_is_refused(
    code, arcsinh, published, home, tmp_path
):
    user_dir = changed(tmp_path, *code)
    data, at = home / "data-bin", ["--user-dir", user_dir]
    model = tmp_path / "model.pt"
    where = (data, user_dir, tmp_path, "transformer_arcsinh", 13)
    for refused in (
        train(*where, "--restore-file", arcsinh, attempt=attempt),
        attempt("generate", data, "--path", arcsinh, *at, *TINY),
        attempt("highrank", "analyse", "card", arcsinh, *at, "--output", tmp_path / "card.html"),
        attempt("highrank", "model", "export", arcsinh, "--data", data, *at, "--output", model),
        attempt("highrank", "model", "import", published, *at, "--output", model),
    ):
        assert refused.code != 0
        message = refused.output.splitlines()[-1]
        assert "another output layer: --head-arcsinh-c 20.0 there, " in message
        assert "its code of the layer" in message
    assert not model.exists()
