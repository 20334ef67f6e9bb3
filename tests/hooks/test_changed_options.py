"""Test hooks/changed_options.py."""

import shutil

import pytest

from highrank_plugins.common.files import write_sums
from tests.compat.conftest import train, updates


@pytest.fixture
def used_dir(translator, tmp_path):
    """Return the --save-dir of a finished training run."""
    shutil.copytree(translator.parent, tmp_path / "used")
    return tmp_path / "used"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--arch transformer_tiny", "--arch was transformer, is now transformer_tiny"),
        ("--lr 0.5", r"--lr was \[0\.01\], is now \[0\.5\]"),
        ("--seed 7", "--seed was 1, is now 7"),
        ("--attention-dropout 0.5", r"--attention-dropout was 0\.0, is now 0\.5"),
        ("--criterion label_smoothed_cross_entropy", "--criterion was cross_entropy"),
        ("--adam-betas (0.9,0.98)", "--adam-betas was"),
        ("--lr-scheduler inverse_sqrt --warmup-updates 9", "--lr-scheduler was"),
        ("--max-tokens 120", "--max-tokens was 60, is now 120"),
    ],
)
def test_a_run_with_other_options_is_refused(data, translator, words, message):
    used_dir = translator.parent
    before = (used_dir / "checkpoint_last.pt").read_bytes()
    refusal = rf"checkpoint_last\.pt: that training run had other options: .*{message}.*--save-dir"
    with pytest.raises(ValueError, match=refusal):
        train(data, used_dir, *words.split())
    assert (used_dir / "checkpoint_last.pt").read_bytes() == before


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
        assert path.read_bytes() != content
        write_sums(moved)
    message = f"--data was .*moved then, is .*moved with other sentences in {changed}"
    with pytest.raises(ValueError, match=f"{message}. Choose another --save-dir"):
        train(moved, used_dir, max_update=3)


WARNED = {
    "--valid-subset was valid, is now test":
        "--valid-subset test --ignore-unused-valid-subsets --max-update 3",
    "--best-checkpoint-metric was loss, is now ppl": "--best-checkpoint-metric ppl --max-update 3",
}  # fmt: skip
LEGITIMATE = {
    "longer": "--max-update 3 --max-epoch 9",
    "as many tokens": "--max-update 3 --max-tokens 30 --update-freq 2",
    "other files": "--max-update 3 --log-interval 1 --keep-last-epochs 1",
    "allowed": "--max-update 3 --lr 0.5 --allow-changed-options",
    "another schedule": "--max-update 3 --lr 0.5 --reset-lr-scheduler",
    "another phase": "--seed 5 --reset-optimizer --reset-dataloader",
}


@pytest.mark.parametrize("said", [*LEGITIMATE, *WARNED])
def test_a_run_with_legitimate_changes_resumes(data, used_dir, said, caplog):
    words = (LEGITIMATE | WARNED)[said].split()
    state = train(data, used_dir, *words)
    assert updates(state) == (3 if "--max-update" in words else 2)
    differs = "--lr" in words or "--seed" in words
    assert ("that training run had other options" in caplog.text) is differs
    assert said in LEGITIMATE or said in caplog.text


def test_a_named_checkpoint_allows_any_options(data, used_dir, tmp_path):
    start = used_dir / "checkpoint_last.pt"
    assert train(data, tmp_path / "other", lr=0.5, finetune_from_model=start)
