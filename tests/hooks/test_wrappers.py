"""Every function of fairseq that is replaced, by what, and in which order: no function has two."""

import subprocess
import sys
from pathlib import Path

from fairseq.trainer import Trainer
from fairseq_cli import train

import highrank_plugins
from highrank_plugins.hooks.trainer import HighrankTrainer
from tests.compat.conftest import translation_options

# fairseq_cli.train.Trainer and MegatronTrainer are replaced, too: hooks/trainer.py has their order
WRAPPERS = """
AMPOptimizer.step <- compat.amp_step.step
FrozenBatchSampler.__init__ <- compat.data_workers.make_sampler
DictConfig.__getattr__ <- compat.data_workers.option
DataLoader.__init__ <- compat.data_workers.make_loader
data_utils.batch_by_size <- compat.dropped_batches.batch_by_size
NanDetector.add_hooks <- compat.nan_detector.add_hooks
checkpoint_utils.torch_persistent_save <- hooks.checkpoints.save
PathManager.copy <- hooks.checkpoints.copy
checkpoint_utils.load_checkpoint_to_cpu <- hooks.checkpoints.load_checkpoint_to_cpu
checkpoint_utils.load_model_ensemble_and_task <- hooks.checkpoints.load_models
models.build_model <- hooks.checkpoints.build_model
FairseqTask.state_dict <- hooks.checkpoints.state_dict
FairseqTask.load_state_dict <- hooks.checkpoints.load_state_dict
options.parse_args_and_arch <- hooks.commands.parse_args_and_arch
utils.eval_str_list <- hooks.commands.eval_str_list
ArgumentParser.parse_known_args <- hooks.commands.parse_known_args
ArgumentParser.error <- hooks.commands.error
utils.call_main <- hooks.commands.call_main
Handler.handleError <- hooks.commands.handle_error
sys.excepthook <- hooks.commands.print_uncaught
tasks.setup_task <- hooks.data_checks.setup_task
TranslationTask.load_dataset <- hooks.data_checks.load_dataset
LanguageModelingTask.load_dataset <- hooks.data_checks.load_dataset
indexed_dataset.dataset_exists <- hooks.data_checks.dataset_exists
indexed_dataset.make_dataset <- hooks.data_checks.make_dataset
Dictionary.add_from_file <- hooks.data_checks.add_from_file
utils._infer_torch_distributed_launch_init <- hooks.distributed.infer_torchrun
utils.distributed_init <- hooks.distributed.distributed_init
FairseqTask.dataset <- hooks.evaluation.dataset
FairseqTask.valid_step <- hooks.evaluation.valid_step
LanguageModelingTask.eval_lm_dataloader <- hooks.evaluation.eval_lm_dataloader
eval_lm.eval_lm <- hooks.evaluation.score_text
eval_lm.main <- hooks.evaluation.evaluate
validate.main <- hooks.evaluation.evaluate
generate.main <- hooks.evaluation.evaluate
utils.post_process_prediction <- hooks.generation.join
FairseqTask.inference_step <- hooks.generation.inference_step
EnsembleModel.forward_decoder <- hooks.generation.forward_decoder
SequenceGenerator.__init__ <- hooks.generation.init
SequenceScorer.generate <- hooks.generation.score
progress_bar.progress_bar <- hooks.metrics.progress_bar
optim.build_optimizer <- hooks.optimizers.build_optimizer
FairseqOptimizer.set_lr <- hooks.optimizers.set_lr
ReduceLROnPlateauLRSchedule.state_dict <- hooks.optimizers.plateau_state
ReduceLROnPlateauLRSchedule.load_state_dict <- hooks.optimizers.load_plateau_state
preprocess.main <- hooks.text.main
SentencepieceBPE.encode <- hooks.text.encode
SubwordNMTBPE.encode <- hooks.text.encode
FairseqTask.build_tokenizer <- hooks.text.build_tokenizer
GeneratorHubInterface.__init__ <- hooks.text.make_hub
GeneratorHubInterface.encode <- hooks.text.encode_sentence
GeneratorHubInterface.binarize <- hooks.text.binarise
interactive.main <- hooks.text.translate_typed
interactive.buffered_read <- hooks.text.buffered_read
interactive.make_batches <- hooks.text.make_batches
train.main <- hooks.training_loop.main
train.train <- hooks.training_loop.train
train.get_valid_stats <- hooks.training_loop.get_valid_stats
train.get_training_stats <- hooks.training_loop.get_training_stats
train.validate <- hooks.training_loop.validate
train.validate_and_save <- hooks.training_loop.validate_and_save
checkpoint_utils.load_checkpoint <- hooks.training_loop.load_checkpoint
""".split("\n")[1:-1]
PRINT = """
import sys
import fairseq_cli.train
hidden = sys.modules.pop("fairseq")  # otherwise the package registers itself
import highrank_plugins
from highrank_plugins.common import patching
sys.modules["fairseq"] = hidden
install, found = patching.replaces, []

def noting(owner, name):
    home = owner.__name__.rpartition(".")[2]
    def decorate(new):
        found.append(f"{home}.{name} <- {new.__module__.partition('.')[2]}.{new.__name__}")
        return install(owner, name)(new)
    return decorate

patching.replaces = noting
exec(sys.argv[1])
highrank_plugins.register()
print(*found, sep="\\n")
"""


def registered(first: str = "") -> list[str]:
    """Return the wrappers in the order in which a process installs them."""
    command = [sys.executable, "-c", PRINT, first]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_list_is_what_register_does():
    assert registered() == WRAPPERS


def test_no_function_has_two_wrappers():
    functions = [line.partition(" <- ")[0] for line in WRAPPERS]
    assert len(set(functions)) == len(functions)


def test_the_order_of_imports_changes_nothing():
    first = "from highrank_plugins.hooks import text, training_loop, metrics"
    assert sorted(registered(first)) == sorted(WRAPPERS)


def test_fairseq_builds_our_trainer_in_both_cases():
    assert train.Trainer is HighrankTrainer
    parallel = train.MegatronTrainer
    stock = [cls.__name__ for cls in parallel.__mro__]
    assert stock[1:4] == ["HighrankTrainer", "MegatronTrainer", "Trainer"]
    own = {name for name in vars(HighrankTrainer) if callable(vars(HighrankTrainer)[name])}
    assert {"train_step", "load_checkpoint", "consolidate_optimizer"} <= own & set(vars(Trainer))


def test_heads_may_be_imported_before_fairseq(data, tmp_path):
    program = "import highrank_plugins.heads; from fairseq_cli.train import cli_main; cli_main()"
    words = translation_options(**{"--arch": "transformer_mos_tiny", "--max-update": 1})
    folder = Path(highrank_plugins.__file__).parent
    more = ["--save-dir", tmp_path, "--cpu", "--optimizer", "adam", "--user-dir", folder]
    command = [sys.executable, "-c", program, data, *words, *more]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "checkpoint_last.pt").exists() and (tmp_path / "metrics.jsonl").exists()
