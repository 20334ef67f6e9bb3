"""The examples of docs/contributing.md, and one that it borrows, do what the page says."""

import math
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from highrank_plugins.heads import head_names, pointwise_names, pointwise_options
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise.base import POINTWISE
from highrank_plugins.heads.vocabulary import VOCABULARY
from highrank_plugins.losses import nll
from highrank_plugins.measures.base import MEASURES
from tests.docs import examples
from tests.heads.cases import STRUCTURES, Case, make_features
from tests.losses.implementations import CLASSES, FULL, TARGET, TOKENS, assert_same, memory_for, run
from tests.measures.test_every_measure import blocks_of, check_shown, words_of
from tests.recipes.running import RECIPES, TEXT, stages_done
from tests.recipes.running import run as run_program

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "contributing.md"
EXAMPLES = examples(PAGE, DOCS / "howto" / "own_layer.md")


@pytest.fixture
def example(request):
    """Run the module of an example, for one test only."""
    name, registry = request.param
    names: dict = {"__name__": name}
    exec(EXAMPLES[name], names)
    yield names
    registry.unregister(name)


def build(case):
    return case.build(classes=CLASSES, **({"embed_dim": 4} if case.head == "tempered" else {}))


def assert_losses_are_the_references(case):
    head, features = build(case), make_features(TOKENS).requires_grad_()
    want = run(head, features, TARGET, impl="reference", **FULL)
    assert_same(run(head, features, TARGET, memory=memory_for(head, 3), **FULL), want)


@pytest.mark.parametrize("example", [("arcsinh", POINTWISE)], indirect=True)
def test_the_example_of_a_pointwise_function_works(example):
    assert "arcsinh" in pointwise_names() and pointwise_options("arcsinh") == {"c": 30.0}
    for case in STRUCTURES:
        assert_losses_are_the_references(case.with_pointwise("arcsinh", c=2.0))
    logits = torch.tensor([-1e3, 0.0, 1e3], dtype=torch.float64)
    far = 5 * math.asinh(200)
    assert example["Arcsinh"](c=5.0).apply_to(logits, {}).tolist() == [-far, 0, far]
    with pytest.raises(ValueError, match="c must be above 0, got 0"):
        example["Arcsinh"](c=0)


@pytest.mark.parametrize("example", [("cubed", VOCABULARY)], indirect=True)
def test_the_example_of_a_vocabulary_matrix_works(example):
    for case in STRUCTURES:
        case = case.with_options(vocabulary="cubed", c=0.5)
        assert_losses_are_the_references(case)
        head = build(case)
        assert torch.allclose(head.weight, 2 * head.parametrizations.weight.original**3)
        matrix = torch.randn_like(head.weight)
        head.weight = matrix
        torch.testing.assert_close(head.weight, matrix)


@pytest.mark.parametrize("example", [("tempered", HEADS)], indirect=True)
def test_the_example_of_a_structure_works(example):
    assert "tempered" in head_names()
    assert_losses_are_the_references(Case("tempered", "plif"))
    head = build(Case("tempered"))
    features, log_probs = make_features(TOKENS), []
    for temperature in (1.0, 2.0):
        torch.nn.init.constant_(head.log_temperature, math.log(temperature))
        log_probs.append(head.log_probs(features))
    torch.testing.assert_close((2 * log_probs[1]).log_softmax(1), log_probs[0])


@pytest.mark.parametrize("example", [("confidence", MEASURES)], indirect=True)
def test_the_example_of_a_measure_works(example):
    words = words_of(STRUCTURES[0])
    measure = example["ConfidenceMeasure"].for_card(words)
    measure.start(words, torch.float64)
    (block,) = blocks_of(words, [24])
    measure.observe(block)
    result = measure.merge([measure.part(), measure.part()])
    assert result.tokens == 48
    assert result.confidence == pytest.approx(block.log_probs.exp().max(1).values.mean().item())
    assert result.accuracy == (block.log_probs.argmax(1) == block.target).double().mean()
    check_shown(measure, result)


def test_the_example_of_a_recipe_works(tmp_path):
    recipe = tmp_path / "recipes" / "captions_en_de"
    (recipe / "conf").mkdir(parents=True)
    (recipe / "run.sh").write_text(EXAMPLES["recipe"])
    (recipe / "conf" / "mos.yaml").write_text(EXAMPLES["conf"])
    shutil.copytree(RECIPES / "lib", tmp_path / "recipes" / "lib")
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    words = ["bash", str(recipe / "run.sh")]
    help_of_recipe = run_program([*words, "--help"]).stdout
    assert "--stop-stage" in help_of_recipe and "last stage [7]" in help_of_recipe
    assert "--data '': no such folder" in run_program(words, 2).stderr
    words += ["--data", str(TEXT), "--stop-stage", "2", "--set", "data.vocab_size=200"]
    assert stages_done(run_program(words)) == [0, 1, 2]
    assert stages_done(run_program(words)) == []


@pytest.mark.parametrize("case", [*STRUCTURES, *(Case("softmax", f) for f in ("gss", "plif"))])
def test_the_example_of_a_kernel_works(case, monkeypatch):
    names: dict = {"__name__": "kernel"}
    exec(EXAMPLES["kernel"], names)
    used = []

    class Kernels(names["LogSoftmaxKernels"]):
        def softmax_pass(self, *given):
            used.append(given)
            return super().softmax_pass(*given)

    monkeypatch.setattr(nll, "kernels_of", lambda *given: Kernels)
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    for options in (FULL, {"reduction": "mean"}):
        want = run(head, features, TARGET, impl="reference", **options)
        assert_same(run(head, features, TARGET, impl="fused", **options), want)
    assert bool(used) == (case.head != "mos")


def test_the_files_of_a_loss_are_those_that_the_page_names():
    section = (
        PAGE.read_text(encoding="utf-8").partition("## A repair of a loss")[2].partition("\n## ")[0]
    )
    named = set(re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE))
    package = Path(nll.__file__).parents[1]
    called = set()

    def note(frame, event, _):
        if event == "call":
            called.add(Path(frame.f_code.co_filename))

    head, features = build(Case("mos")), make_features(TOKENS).requires_grad_()
    sys.setprofile(note)
    try:
        run(head, features, TARGET, impl="fused", reduction="sum")
    finally:
        sys.setprofile(None)
    files = {str(path.relative_to(package)) for path in called if path.is_relative_to(package)}
    used = {file for file in files if file.startswith(("losses/", "own_layers/"))}
    assert used == named and len(named) == 8
