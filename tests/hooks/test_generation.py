"""Generation and scoring refuse NaN, name the batch without memory, and normalise once."""

from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.models import FairseqDecoder
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.generation import refuse_nan
from tests.compat.conftest import evaluate, train
from tests.models.small import build

QUICK = ["--beam", 2, "--max-len-b", 4, "--quiet"]


def test_nan_is_an_error(data, translator, tmp_path, monkeypatch):
    state, broken = torch.load(translator), tmp_path / "broken.pt"
    state["model"]["decoder.output_projection.weight"][5] = float("nan")
    torch.save(state, broken)
    for path in broken, f"{translator}:{broken}":
        with pytest.raises(FloatingPointError, match=r"--path.*NaN"):
            evaluate("generate", data, path, *QUICK)
    assert evaluate("generate", data, translator, *QUICK) is not None
    # every model gives NaN to class 5, as a mixture may
    sound = FairseqDecoder.get_normalized_probs

    def probabilities(decoder, *args, **kwargs):
        return sound(decoder, *args, **kwargs).index_fill(-1, torch.tensor(5), torch.nan)

    monkeypatch.setattr(FairseqDecoder, "get_normalized_probs", probabilities)
    with pytest.raises(FloatingPointError, match=r"--path.*NaN"):
        evaluate("generate", data, translator, *QUICK)

    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(translator)])
    language_model = torch.nn.Identity()  # its output is the input
    SequenceGenerator(models, task.target_dictionary, lm_model=language_model)
    with pytest.raises(FloatingPointError, match="--lm-path"):
        language_model([torch.full((1, 20), torch.nan)])
    for dtype in torch.float16, torch.float32:  # infinities are allowed
        scores = torch.full((3, 70_000), -3.0, dtype=dtype)
        scores[:, 1] = -torch.inf
        refuse_nan(scores, "a model")
        scores[2, 7] = torch.nan
        with pytest.raises(FloatingPointError):
            refuse_nan(scores, "a model")


@pytest.fixture
def normalised(monkeypatch) -> list[torch.Tensor]:
    """Record what fairseq has normalised."""
    seen = []
    stock = FairseqDecoder.get_normalized_probs

    def get_normalized_probs(decoder, net_output, *more):
        seen.append(net_output[0].clone())
        return stock(decoder, net_output, *more)

    monkeypatch.setattr(FairseqDecoder, "get_normalized_probs", get_normalized_probs)
    return seen


def hypotheses_of(built, models, **options) -> list[dict]:
    """Return all hypotheses of a batch."""
    search = Namespace(beam=3, max_len_a=0, max_len_b=8, **options)
    generator = built.task.build_generator(models, search)
    hypotheses = built.task.inference_step(generator, models, built.batch())
    return [h for sentence in hypotheses for h in sentence]


@pytest.mark.parametrize(
    ("head", "others", "options"),
    [
        *((head, [], {}) for head in ("softmax", "mos", "mixtape", "plif")),
        ("mos", ["transformer"], {}),  # fairseq's model needs its only log_softmax
        ("mixtape", [], {"temperature": 0.5}),
    ],
)
def test_hypotheses_are_those_of_fairseq_with_fewer_softmaxes(
    head, others, options, mt_data, stock, normalised
):
    built = build(mt_data, f"transformer_{head}_tiny")
    models = [built.model.eval()]
    models += [build(mt_data, arch, "--criterion", "cross_entropy").model.eval() for arch in others]
    found, steps = hypotheses_of(built, models, **options), len(normalised)
    assert (steps > 0) is bool(others or options)
    if options:
        assert all((divided.exp().sum(-1) < 0.9).all() for divided in normalised)
    stock(EnsembleModel, "forward_decoder")
    for a, b in zip(found, hypotheses_of(built, models, **options), strict=True):
        assert a["tokens"].tolist() == b["tokens"].tolist()
        torch.testing.assert_close(a["positional_scores"], b["positional_scores"])
    assert len(normalised) == 3 * steps if others else len(normalised) > steps


CUDA = torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB."
CUBLAS = RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"


def fail_with(error: tuple[type, str] | None) -> None:
    if error is None:
        torch.empty(1 << 60, dtype=torch.uint8)
    raise error[0](error[1])


@pytest.fixture
def short(monkeypatch):
    """Make the loss fail from its n-th batch of a kind (training or not) on, some times."""

    def patch(error, number=1, training=True, times=9):
        real, calls = CrossEntropyCriterion.forward, []

        def forward(criterion, model, sample, reduce=True):
            if model.training is training:
                calls.append(1)
                if number <= len(calls) < number + times:
                    fail_with(error)
            return real(criterion, model, sample, reduce)

        monkeypatch.setattr(CrossEntropyCriterion, "forward", forward)

    return patch


@pytest.mark.parametrize("error", [CUDA, CUBLAS, None, (MemoryError, "")])
def test_a_run_names_the_batch_and_what_to_lower(data, tmp_path, short, error):
    short(error, 3)
    with pytest.raises(UserError) as raised:
        train(data, tmp_path, max_update=9, update_freq=2, max_tokens=40)
    message = str(raised.value)
    assert message.startswith("Out of memory in update 2: a batch of ")
    assert "sentences, " in message and "tokens; the longest sentence has " in message
    assert "Halve --max-tokens (now 40) and double --update-freq (now 2)" in message
    assert (tmp_path / "crash.pt").exists() == (error == (MemoryError, ""))  # fairseq's


def test_the_options_to_lower_are_named_and_other_errors_left_alone(data, tmp_path, short):
    short(CUDA)
    with pytest.raises(UserError, match=r"--head-loss-memory MIB \(now 64\) bounds"):
        train(data, tmp_path, arch="transformer_mos", head_loss_memory=64)
    with pytest.raises(UserError, match=r"a batch of 4 sentences.*--batch-size \(now 4\)"):
        train(data, tmp_path, batch_size=4, max_tokens=None)
    short((RuntimeError, "shapes differ"))
    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        train(data, tmp_path)


def test_a_validation_is_retried_first_and_then_names_its_batch(data, tmp_path, short, caplog):
    short(CUDA, training=False, times=1)
    train(data, tmp_path / "one", max_update=1)
    assert "retrying batch" in caplog.text
    short(CUDA, training=False)
    with pytest.raises(UserError, match=r"in a validation: a batch.*--max-tokens-valid"):
        train(data, tmp_path, max_update=1)


def test_generation_and_scoring_name_their_batch(data, translator, language_model, monkeypatch):
    monkeypatch.setattr(SequenceGenerator, "_generate", lambda *_, **__: fail_with(CUDA))
    with pytest.raises(UserError, match=r"in generation: a batch of 3 sent.*or --beam"):
        evaluate("generate", data, translator, "--batch-size", 3)
    monkeypatch.setattr(torch.nn.Embedding, "forward", lambda *args: fail_with(None))
    with pytest.raises(UserError, match=r"in scoring: a batch of .*or --softmax-batch"):
        evaluate("eval-lm", data / "lm", language_model, "--tokens-per-sample", 16)


def test_words_are_not_glued_together(data, translator):
    with pytest.raises(UserError, match="--post-process wordpiece: no word of the dictionary has"):
        evaluate("generate", data, translator, *QUICK, "--post-process", "wordpiece")
