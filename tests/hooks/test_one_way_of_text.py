"""fairseq-preprocess reads text as strictly as `highrank data`, before it writes anything."""

import pytest
from fairseq import options
from fairseq_cli import preprocess

import highrank_plugins.hooks.one_way_of_text  # noqa: F401  (importing it applies the repair)
from highrank_plugins.common.text_lines import TextError
from tests.data.test_bad_text import EVERYWHERE, GOOD


def run(folder, *words):
    names = [w for p in ("train", "valid", "test") for w in (f"--{p}pref", f"{folder}/{p}")]
    parsed = options.get_preprocessing_parser().parse_args([*names, *words])
    parsed.destdir = str(folder / "out")
    preprocess.main(parsed)


@pytest.fixture
def folder(tmp_path):
    for part in ("train", "valid", "test"):
        for end in ("", ".en", ".de"):
            (tmp_path / f"{part}{end}").write_bytes(GOOD)
    return tmp_path


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("fault", EVERYWHERE)
def test_bad_text_is_refused_before_anything_is_written(folder, fault, part):
    (folder / f"{part}.de").write_bytes(EVERYWHERE[fault])
    with pytest.raises(TextError, match=rf"{part}\.(de|en)(:\d|: no line|: the file is empty)"):
        run(folder, "-s", "en", "-t", "de")
    assert not (folder / "out").exists()


@pytest.mark.parametrize("word", ["zebra", "<unk>"])
@pytest.mark.parametrize(
    ("train", "options", "refused"),
    [
        (b"", (), True),
        (b"", ("--nwordssrc", "40"), True),
        (b"", ("--nwordssrc", "10"), False),
        (b"", ("--thresholdsrc", "4"), False),
        (b"<unk>\n", (), False),
    ],
)
def test_words_that_a_language_model_never_sees_are_refused(folder, word, train, options, refused):
    (folder / "train").write_bytes(GOOD + train)
    (folder / "valid").write_bytes(GOOD + f"one {word}\n".encode())
    if not refused:
        return run(folder, "--only-source", *options)
    with pytest.raises(TextError, match=rf"valid:10:5: the word '{word}' is not in the training"):
        run(folder, "--only-source", *options)
