"""Test hooks/out_of_memory.py."""

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.sequence_generator import SequenceGenerator
from fairseq_cli import eval_lm, generate

import highrank_plugins.hooks.out_of_memory  # noqa: F401  (importing it applies the repair)
from highrank_plugins.common.user_error import UserError
from tests.compat.conftest import config, run_training, translation_options


def cuda():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def cublas():
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")


def cpu():
    torch.empty(1 << 60, dtype=torch.uint8)


def python():
    raise MemoryError


@pytest.fixture
def short(monkeypatch):
    """Make a function fail from its n-th call on."""

    def patch(owner, name, fail, number):
        real, calls = getattr(owner, name), []

        def failing(*args, **kwargs):
            calls.append(1)
            if len(calls) >= number:
                fail()
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, failing)

    return patch


@pytest.mark.parametrize("fail", [cuda, cublas, cpu, python])
def test_a_run_names_the_batch_and_what_to_lower(data, tmp_path, short, fail):
    short(CrossEntropyCriterion, "forward", fail, 3)
    options = translation_options(**{"--max-update": 9, "--update-freq": 2, "--max-tokens": 40})
    with pytest.raises(UserError) as raised:
        run_training(data, tmp_path, *options)
    message = str(raised.value)
    assert message.startswith("Out of memory in update 2: a batch of ")
    assert "sentences, " in message and "tokens; the longest sentence has " in message
    assert "Halve --max-tokens (now 40) and double --update-freq (now 2)" in message
    assert (tmp_path / "crash.pt").exists() == (fail is python)  # fairseq's, of unknown errors


def test_the_memory_option_of_our_losses_is_named(data, tmp_path, short):
    short(CrossEntropyCriterion, "forward", cuda, 1)
    options = translation_options(**{"--arch": "transformer_mos", "--head-loss-memory": 64})
    with pytest.raises(UserError, match=r"--head-loss-memory MIB \(now 64\) bounds"):
        run_training(data, tmp_path, *options)


def test_batches_of_sentences_are_named(data, tmp_path, short):
    short(CrossEntropyCriterion, "forward", cuda, 1)
    options = translation_options(**{"--batch-size": 4})
    del options[options.index("--max-tokens") : options.index("--max-tokens") + 2]
    with pytest.raises(UserError, match=r"a batch of 4 sentences.*--batch-size \(now 4\)"):
        run_training(data, tmp_path, *options)


def test_a_validation_is_retried_first(data, tmp_path, monkeypatch, caplog):
    real, calls = CrossEntropyCriterion.forward, []

    def once(criterion, model, sample, reduce=True):
        if not model.training:
            calls.append(1)
            if len(calls) == 1:
                cuda()
        return real(criterion, model, sample, reduce)

    monkeypatch.setattr(CrossEntropyCriterion, "forward", once)
    run_training(data, tmp_path / "one", *translation_options(**{"--max-update": 1}))
    assert "retrying batch" in caplog.text


def test_a_validation_names_its_batch(data, tmp_path, monkeypatch):
    real = CrossEntropyCriterion.forward

    def never(criterion, model, sample, reduce=True):
        if not model.training:
            cuda()
        return real(criterion, model, sample, reduce)

    monkeypatch.setattr(CrossEntropyCriterion, "forward", never)
    with pytest.raises(UserError, match=r"in a validation: a batch.*--max-tokens-valid"):
        run_training(data, tmp_path, *translation_options(**{"--max-update": 1}))


def test_other_errors_are_left_alone(data, tmp_path, short):
    def fail():
        raise RuntimeError("shapes differ")

    short(CrossEntropyCriterion, "forward", fail, 1)
    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        run_training(data, tmp_path, *translation_options())


def test_generation_names_its_batch(data, translator, short):
    short(SequenceGenerator, "_generate", cuda, 1)
    words = [data, "--path", translator, "--batch-size", 3, "--cpu"]
    with pytest.raises(UserError, match=r"in generation: a batch of 3 sent.*or --beam"):
        generate.main(config("generation", *words))


def test_scoring_names_its_batch(data, language_model, monkeypatch):
    monkeypatch.setattr(torch.nn.Embedding, "forward", lambda *args: cpu())
    words = [data / "lm", "--path", language_model, "--task", "language_modeling", "--cpu"]
    with pytest.raises(UserError, match=r"in scoring: a batch of .*or --softmax-batch"):
        eval_lm.main(config("eval_lm", *words, "--tokens-per-sample", 16))
