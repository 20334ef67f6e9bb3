"""Text of the user's own from files to a score and to translations of new lines."""

import json
import subprocess
import sys

import pytest

from highrank_plugins.studies.definition import read_study
from tests.recipes.running import RECIPES, overrides, recipe, refused, run, stages_done

LSTM = ("decoder_embed_dim", "decoder_hidden_size", "decoder_last_hidden_size")
TRANSFORMER = ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim")


@pytest.fixture(scope="module")
def timetable(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own text")  # a space in every path
    subprocess.run([sys.executable, RECIPES / "own_translation" / "timetable.py", folder])
    return folder


def highrank(*words: object, **options) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "highrank_plugins.cli", *words], **options)


@pytest.mark.long  # reads 600 files
def test_the_embedded_texts_are_the_same_everywhere(timetable, tmp_path):
    lines = (timetable / "timetable.en").read_text().splitlines()
    assert lines[0] == "the train arrives from Ulm at twenty six past five at night"
    assert len({*lines}) == 3000
    script = RECIPES / "own_language_model" / "documentation.py"
    run([sys.executable, script, tmp_path / "text"])  # it compares a checksum


LM, MT = "own_language_model", "own_translation"


@pytest.mark.parametrize(("name", "words", "message"), [
    (MT, "", "--source and --target are required"),
    (MT, "--source en --target en", "are both en: give two"),
    (LM, "--order lines", "an AWD-LSTM reads a stream"),
    (LM, "--conf mos", "expected TRUNK/LAYER"),
])  # fmt: skip
def test_what_cannot_train_is_refused_before_anything_is_written(
    timetable, tmp_path, name, words, message
):
    given = ["--data", timetable / "timetable", "--exp-dir", tmp_path / "exp", *words.split()]
    refused(recipe(name, *given), message)
    assert not (tmp_path / "exp").exists()


def test_the_recipe_of_a_new_folder_reads_the_text_there(timetable, tmp_path):
    """Not the embedded documentation, which the recipe of the repository reads without --data."""
    text = timetable / "timetable.en"
    highrank("new", tmp_path / "lm", "--language-model", "--data", text)
    assert (tmp_path / "lm" / "text" / "train.txt").read_text() == text.read_text()
    words = ["--units", "pieces", "--set", "data.vocab_size=60", "--exp-dir", tmp_path / "exp"]
    words += ["--stop-stage", "1", "--measured-updates", "0"]
    command = ["bash", str(tmp_path / "lm" / "run.sh"), *map(str, words)]
    result = run(command)
    made = tmp_path / "exp" / "lm" / "text" / "awd_lstm" / "softmax"
    lines = [(made / "text" / f"{part}.txt").read_text() for part in ("train", "valid", "test")]
    assert "".join(lines) == text.read_text()
    assert "--vocab-size 60" in result.stderr
    assert stages_done(run(command)) == []
    with (tmp_path / "lm" / "sizes_awd_lstm.yaml").open("a") as table:
        table.write("# changed: it says which words are rare, too\n")
    assert 0 in stages_done(run(command))


@pytest.mark.parametrize("kind", ["--translation", "--language-model"])
def test_a_new_folder_has_a_study_which_refuses_its_text_before_a_member_starts(
    timetable, tmp_path, kind
):
    mine, is_translation = tmp_path / "mine", kind == "--translation"
    words = ["new", mine, kind, *(["--source", "en", "--target", "de"] if is_translation else [])]
    highrank(*words)
    study = read_study(mine / "study.yaml")
    assert len(study.members) == 12 and study.recipe == mine
    assert study.options["data"] == str(mine / "text")
    help_text = run(["bash", str(mine / "run.sh"), "--help"]).stdout
    assert ("[en]" in help_text) == is_translation
    assert "exists already: name another" in highrank(*words, code=2).stderr
    for way, count, said in (
        ("--dry-run", 0, "train.en, train.de, valid.en"), ("--jobs=1", 50, "41 lines to train on"),
    ) if is_translation else ():  # fmt: skip
        for language in ("en", "de") if count else ():
            text = (timetable / f"timetable.{language}").read_text().split("\n")[:count]
            (mine / "text" / f"short.{language}").write_text("\n".join(text))
        words = ["study", mine / "study.yaml", "--exp-dir", tmp_path / "e", way]
        result = highrank(*words, code=2)
        assert result.stdout == "" and said in result.stderr and result.stderr.count("\n") == 1
        assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(("words", "message"), [
    ("--translation", "--translation needs --source and --target"),
    ("--translation --source c;s --target=en", "language 'c;s': expected a code"),
])  # fmt: skip
def test_a_new_folder_of_no_text_and_a_folder_of_no_model_are_refused(tmp_path, words, message):
    assert message in highrank("new", tmp_path / "mine", *words.split(), code=2).stderr
    assert not (tmp_path / "mine").exists()
    said = "neither a checkpoint, nor a folder with one or with a model"
    assert said in highrank("translate", tmp_path, code=2).stderr
    said = "nowhere: no such file or folder"
    assert said in highrank("translate", tmp_path / "nowhere", code=2).stderr


OWN_TEXT = f"source {RECIPES}/lib/language_modeling.sh\nsource {RECIPES}/lib/own_text.sh\n"


def test_the_files_of_a_text_are_found_in_any_folder_and_no_others(tmp_path):
    folder, script = tmp_path / "a[1] *", tmp_path / "run.sh"
    (folder / "exp").mkdir(parents=True)
    for name in ("x.en", "x.de", "y.en", "exp/x.en"):
        (folder / name).touch()
    for data, names in (("", "x.de x.en y.en"), ("x", "x.de x.en"), ("y.en", "y.en")):
        script.write_text(f"{OWN_TEXT}data='{folder / data}'; files_of_text")
        found = run(["bash", script]).stdout.splitlines()
        assert found == [str(folder / name) for name in names.split()]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_own_text_is_trained_and_translated_by_every_form_of_a_model(timetable, tmp_path):
    words = ["--data", timetable / "timetable", "--source", "en", "--target", "de"]
    words += ["--conf", "mixtape", "--exp-dir", tmp_path / "exp", "--measured-updates", 2]
    changes = overrides(max_update=4, max_epoch=1, average__last=1)
    settings = [change for change in changes if "vocab_size" not in change]
    result = run(recipe("own_translation", *words, settings=settings))
    folder = tmp_path / "exp" / "own_translation" / "timetable-en-de" / "mixtape"
    assert stages_done(result) == [0, 1, 2, 3, 4, 5, 6]
    assert "training takes about 0 minutes on this machine" in result.stderr
    record = json.loads((folder / "results.json").read_text())
    assert record["config"]["train"]["source_lang"] == "en"
    assert record["ledger"]["text"]["train.en"]["out"]["sentences"] == 2439
    assert result.stdout.splitlines()[-1].startswith("sacreBLEU ")
    text = "the bus leaves\n\nthe train arrives\n"
    first = highrank("translate", folder, stdin=text).stdout
    assert first.count("\n") == 3 and first.split("\n")[1] == "" and "▁" not in first
    checkpoint, pieces = folder / "average" / "checkpoint.pt", folder / "pieces" / "pieces.model"
    words = ["--pieces", pieces, "--data", folder / "data-bin", "--output", tmp_path / "model"]
    highrank("model", "export", checkpoint, *words)
    for model in (checkpoint, tmp_path / "model"):
        assert highrank("translate", model, stdin=text).stdout == first


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("conf", "words"), [
    ("awd_lstm/mos", []),
    ("transformer/mos", ["--units", "pieces"]),
    ("transformer/softmax", ["--order", "lines"]),
])  # fmt: skip
def test_language_models_are_scored_with_the_unigram_beside_them(timetable, tmp_path, conf, words):
    is_lstm = conf.startswith("awd")
    settings = [f"{name}=8" for name in (LSTM if is_lstm else TRANSFORMER)]
    settings += ["max_epoch=1", "asgd_at_epoch=1" if is_lstm else "decoder_layers=1"]
    data = ["--data", timetable / "timetable.en", "--exp-dir", tmp_path, "--name", "a"]
    more = ["--conf", conf, "--measured-updates", 2, *words]
    run(recipe("own_language_model", *data, *more, settings=settings))
    record = json.loads((tmp_path / "own_language_model" / "a" / "results.json").read_text())
    assert {"test_perplexity", "test_unigram_perplexity"} <= record["metrics"].keys()
    assert record["ledger"]["evaluate"]["test"]["left out"] == {}


@pytest.mark.parametrize(("data", "name"), [
    (".", "my text-en-de/mos"), ("../my text/", "my text-en-de/mos"), ("new", "new-en-de/mos"),
    ("../my text/a.txt", "a-en-de/mos"),
])  # fmt: skip
def test_a_run_is_named_after_its_text_however_its_folder_is_written(tmp_path, data, name):
    folder, script = tmp_path / "my text", tmp_path / "run.sh"
    folder.mkdir()
    values = f"data='{data}' source=en target=de conf=mos sizes=sizes"
    script.write_text(f'{OWN_TEXT}highrank() {{ :; }}; {values}; read_own_text; echo "$name"')
    assert run(["bash", script], folder=folder).stdout == f"{name}\n"
