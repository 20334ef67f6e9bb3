"""All ways to evaluate agree; a resumed run equals an unbroken one, two processes equal one."""

import functools
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fairseq import checkpoint_utils

import highrank_plugins
from tests.fairseq_cli import attempt, run
from tests.free_port import free_address
from tests.stream_corpus import CERTAIN, LINES, binarise, train_streams, write_text
from tests.trainings import last, leaves

TASK = ["--task", "bptt_language_modeling"]


@pytest.fixture(scope="module")
def trained(stream_data, tmp_path_factory):
    """Train a model whose words depend on those before; return it and its loss in bits."""
    folder = tmp_path_factory.mktemp("trained")
    words = "--optimizer adam --lr 0.03 --clip-norm 1 --max-epoch 5".split()
    train_streams(stream_data, folder, *CERTAIN, *words)
    return last(folder), validation_loss(folder)


def validation_loss(folder):
    return torch.load(last(folder), weights_only=True)["extra_state"]["val_loss"]


def in_one_go(data, path):
    """Return mean bits of the validation tokens in one forward pass, and their number."""
    highrank_plugins.register()
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    task.load_dataset("valid")
    tokens = task.dataset("valid").tokens
    source = torch.cat([torch.tensor([task.dictionary.eos()]), tokens[:-1]])
    with torch.no_grad():
        log_probs, _ = model.eval()(source.unsqueeze(0))
    picked = log_probs[0].gather(-1, tokens.unsqueeze(-1))
    return -picked.mean().item() / 0.6931471805599453, len(tokens)


def scored(output):
    """Return bits per token, and the number of tokens, as fairseq-eval-lm printed them."""
    loss = float(re.search(r"Loss \(base 2\): ([\d.]+)", output)[1])
    return loss, int(re.search(r"Evaluated (\d+) tokens", output)[1])


def test_all_ways_to_evaluate_agree(stream_data, trained):
    path, in_training = trained
    want, tokens = in_one_go(stream_data, path)
    assert in_training == pytest.approx(want, abs=1e-5)
    assert want < 3.5  # of log2(18) = 4.17: it has learnt

    words = [stream_data, "--path", path, "--gen-subset", "valid", *TASK, "--bptt", 6]
    loss, counted = scored(run("eval-lm", *words).output)
    assert counted == tokens
    assert loss == pytest.approx(want, abs=1e-4)

    words = [stream_data, "--path", path, "--batch-size", 1, *TASK]
    output = run("validate", *words).output
    assert float(re.search(r"loss ([\d.]+)", output)[1]) == pytest.approx(want, abs=1e-5)

    words = [stream_data, "--path", path, "--gen-subset", "valid", *TASK, "--eval-streams", 4]
    loss, counted = scored(run("eval-lm", *words).output)
    assert counted == tokens
    assert abs(loss - want) > 0.01  # three streams begin without a context


def test_averages_are_what_is_validated_and_saved(stream_data, tmp_path):
    words = ["--max-epoch", 2, "--asgd-at-epoch", 1, "--lr", 10]
    train_streams(stream_data, tmp_path, *words)
    state = torch.load(last(tmp_path), weights_only=True)
    optimizer = state["last_optimizer_state"]
    assert optimizer["nt_asgd"]["averages_in_model"]
    want, _ = in_one_go(stream_data, last(tmp_path))
    assert validation_loss(tmp_path) == pytest.approx(want, abs=1e-5)
    # training continues from the raw weights, which differ
    embedding = state["model"]["decoder.output_projection.weight"]
    raw = [s["ax"] for s in optimizer["state"].values() if s["ax"].shape == embedding.shape]
    assert len(raw) == 1 and not torch.allclose(raw[0], embedding, atol=1e-3)


GENERATE = ["generate", *TASK, "--gen-subset", "valid"]
NO_GENERATION = "score it with fairseq-eval-lm --task bptt_language_modeling"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval-lm", "--task", "language_modeling"], "add --task bptt_language_modeling"),
        (["eval-lm", *TASK, "--num-shards", 2], "--num-shards: streams cannot be divided"),
        (["eval-lm", *TASK, "--batch-size", 3], "give --eval-streams 3"),
        (["eval-lm", *TASK, "--context-window", 5], "leave it (and --context-window) out"),
        (["eval-lm", *TASK, "--gen-subset", "nothing"], "split 'nothing' is missing"),
        (GENERATE, "fairseq-generate always gives --max-tokens: use fairseq-eval-lm"),
        ([*GENERATE, "--score-reference", "--batch-size", 1], NO_GENERATION),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_options_that_lose_state_or_tokens_are_refused(words, message, stream_data, trained):
    done = attempt(words[0], stream_data, "--path", trained[0], *words[1:])
    assert done.code == 2
    assert message in done.output


# -- resuming, and two processes -------------------------------------------------------------------

# the validation after epoch 2 is what makes NT-ASGD switch here
AVERAGING = {
    "nt": ["--nonmono", 0, "--lr", 10], "et": ["--asgd-at-epoch", 1],
    "shards": ["--asgd-at-epoch", 2],
}  # fmt: skip
SWITCHED = {"nt": 3, "et": 2, "shards": 3}
EPOCHS = ["--max-epoch", 3]


def end_of(save_dir):
    """Return the parts of the last checkpoint that a resumed training run could get wrong."""
    state = torch.load(last(save_dir), weights_only=True)
    return dict(leaves({"model": state["model"], "optimizer": state["last_optimizer_state"]}))


def check_same(got, want):
    assert got.keys() == want.keys()
    for place, value in want.items():
        equal = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
        assert equal(got[place], value), place


@pytest.fixture(scope="module")
def train(stream_data, tmp_path_factory):
    """Return a function that trains, on two folders of one dictionary if they are asked for."""
    folders = []
    for lines in (LINES, LINES | {"train": 60}):
        folder = write_text(tmp_path_factory.mktemp("shard"), lines)
        dictionary = ["--srcdict", folders[0] / "dict.txt"] if folders else []
        folders.append(binarise(folder, *dictionary))
    for path in (*folders[1].glob("valid.*"), *folders[1].glob("test.*")):
        path.unlink()

    def train(folder, name, *words):
        data = ":".join(map(str, folders)) if name == "shards" else stream_data
        return train_streams(data, folder, *AVERAGING[name], *words)

    return train


@pytest.fixture(scope="module")
def unbroken(train, tmp_path_factory):
    """Return a function: the end of an uninterrupted training run, and what it printed."""

    @functools.cache
    def run(name):
        done = train(folder := tmp_path_factory.mktemp(name), name, *EPOCHS)
        return end_of(folder), done.output

    return run


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        ("nt", ["--max-update", 39]),  # in an epoch
        ("nt", ["--max-epoch", 2]),
        # so does the training run below that validates on its own text
        pytest.param("et", ["--max-update", 39], marks=pytest.mark.long),
        ("shards", ["--max-epoch", 1]),
        ("shards", ["--max-update", 25]),
    ],
    ids=str,
)
def test_a_resumed_run_equals_an_uninterrupted_one(name, stop, train, unbroken, tmp_path):
    want, output = unbroken(name)
    train(tmp_path, name, *stop)
    assert "Loaded checkpoint" in train(tmp_path, name, *EPOCHS).output
    check_same(end_of(tmp_path), want)
    # else the cases would not tell whether the history survives
    assert f"averaging the weights from epoch {SWITCHED[name]} on" in output


def test_validation_on_the_training_text_and_workers_change_nothing(train, unbroken, tmp_path):
    words = ["--valid-subset", "valid,train", "--batch-size-valid", 1]
    words += ["--num-workers", 2, "--data-buffer-size", 3]
    train(tmp_path, "et", *words, "--max-update", 39)
    done = train(tmp_path, "et", *words, *EPOCHS)
    assert "train: 543 tokens in 1 stream of 543 (--eval-streams)" in done.output
    check_same(end_of(tmp_path), unbroken("et")[0])
    sizes = re.findall(r"train: ([\d,]+) tokens in 4 streams", unbroken("shards")[1])
    assert sizes[0] == sizes[2] != sizes[1]  # each epoch uses the next shard


TOGETHER = [*CERTAIN, "--asgd-at-epoch", 1]


def train_two(data, save_dir, *options):
    """Train on both ranks, each with half of the streams unless options say otherwise."""
    group = [
        *("--distributed-world-size", 2, "--device-id", 0, "--batch-size", 2),
        *("--distributed-init-method", free_address(), "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
    ]

    def start(rank):
        words = [*TOGETHER, *group, "--distributed-rank", rank, *options]
        return train_streams(data, save_dir, *words).output

    with ThreadPoolExecutor() as pool:
        return list(pool.map(start, (0, 1)))


@pytest.mark.parametrize("options", [(), ("--streams", 3)])  # 3: the second rank has one
def test_two_processes_equal_one(stream_data, tmp_path, options):
    alone = ("--batch-size", 3) if options else ()
    train_streams(stream_data, tmp_path / "one", *TOGETHER, *alone, "--max-epoch", 2)
    train_two(stream_data, tmp_path / "two", *options, "--max-update", 22)  # in epoch 2
    outputs = train_two(stream_data, tmp_path / "two", *options, "--max-epoch", 2)
    assert "Loaded checkpoint" in outputs[0] and "training on 2 devices" in outputs[0]
    one, two = (torch.load(last(tmp_path / name), weights_only=True) for name in ("one", "two"))
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, rtol=1e-5, atol=1e-6)
    for i, state in one["last_optimizer_state"]["state"].items():
        other = two["last_optimizer_state"]["state"][i]["ax"]
        torch.testing.assert_close(other, state["ax"], rtol=1e-5, atol=1e-6)
    assert two["extra_state"]["val_loss"] == pytest.approx(one["extra_state"]["val_loss"], abs=1e-5)
