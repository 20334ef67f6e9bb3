"""Test hooks/changed_options.py."""

import shutil

import pytest

from highrank_plugins.common.files import write_sums
from tests.compat.conftest import train, updates


@pytest.fixture
def used_dir(translator, tmp_path):
    """Return the --save-dir of a finished training run."""
    return shutil.copytree(translator.parent, tmp_path / "used")


def test_a_run_with_other_options_is_refused(data, translator, tmp_path):
    before = translator.read_bytes()
    for words, message in (
        ("--arch transformer_tiny", "--arch was transformer, is now transformer_tiny"),
        ("--lr 0.5", r"--lr was \[0\.01\], is now \[0\.5\]"),
        ("--seed 7", "--seed was 1, is now 7"),
        ("--attention-dropout 0.5", r"--attention-dropout was 0\.0, is now 0\.5"),
        ("--criterion label_smoothed_cross_entropy", "--criterion was cross_entropy"),
        ("--adam-betas (0.9,0.98)", "--adam-betas was"),
        ("--lr-scheduler inverse_sqrt --warmup-updates 9", "--lr-scheduler was"),
        ("--max-tokens 120", "--max-tokens was 60, is now 120"),
    ):
        refusal = rf"checkpoint_last\.pt: that training run had other options: .*{message}.*--save-"
        with pytest.raises(ValueError, match=refusal):
            train(data, translator.parent, *words.split())
    assert translator.read_bytes() == before
    assert train(data, tmp_path / "other", lr=0.5, finetune_from_model=translator)


@pytest.mark.parametrize(
    "split, source, changed",
    [
        ("train", "valid", "the training set"),
        ("valid", "test", "the validation set 'valid'"),
        ("train", None, "the training set"),  # only checksums tell these apart
        ("valid", None, "the validation set 'valid'"),
    ],
)
def test_other_data_is_refused_wherever_it_is(data, used_dir, tmp_path, split, source, changed):
    moved = shutil.copytree(data, tmp_path / "moved")
    if source is None:
        write_sums(moved)
    train(moved, used_dir, max_update=3)
    for path in moved.glob(f"{source}.*"):
        shutil.copy(path, path.with_name(path.name.replace(source, split)))
    if source is None:
        path = next(moved.glob(f"{split}.*.bin"))
        content = path.read_bytes()
        path.write_bytes(content[2:4] + content[:2] + content[4:])  # the first two words
        write_sums(moved)
    message = f"--data was .*moved then, is .*moved with other sentences in {changed}"
    with pytest.raises(ValueError, match=f"{message}. Choose another --save-dir"):
        train(moved, used_dir, max_update=3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--max-epoch 9 --log-interval 1 --keep-last-epochs 1", None),
        ("--max-tokens 30 --update-freq 2", None),  # as many tokens
        ("--lr 0.5 --allow-changed-options", "that training run had other options"),
        ("--lr 0.5 --reset-lr-scheduler", "that training run had other options"),
        ("--seed 5 --reset-optimizer --reset-dataloader", "that training run had other options"),
        ("--valid-subset test --ignore-unused-valid-subsets",
         "--valid-subset was valid, is now test"),
        ("--best-checkpoint-metric ppl", "--best-checkpoint-metric was loss, is now ppl"),
    ],
)  # fmt: skip
def test_a_run_with_legitimate_changes_resumes(data, used_dir, words, said, caplog):
    state = train(data, used_dir, *words.split(), max_update=3)
    assert updates(state) == 3
    assert ((said or "had other options") in caplog.text) is bool(said)
