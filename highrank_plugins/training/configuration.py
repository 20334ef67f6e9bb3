"""Define the configuration of a training run and of the stages after it: blocks of options."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator

from highrank_plugins.common import blocks
from highrank_plugins.common.blocks import BlockOptions, ConfigurationError, Tree, explained_places
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.data.pieces import PieceSettings
from highrank_plugins.measures import measure_names
from highrank_plugins.training.blocks import MODELS, PROGRAMS, AverageSettings, set_by_recipes


def _scalar(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError("must be text, a number, true or false")


# true: a bare flag; false: no flag; quote True for an option that takes the word
Scalar = Annotated[Any, AfterValidator(_scalar)]


# data.algorithm → how fairseq-generate joins the pieces
_TEXT_OF_PIECES: dict[str, dict[str, Scalar]] = {
    "sentencepiece": {"post_process": "sentencepiece"},
    "subword_nmt": {"post_process": "subword_nmt", "tokenizer": "moses"},
}

# options of `train` that say what the model is and reads, so later blocks cannot have others
_FACTS = (
    "user_dir", "task", "source_lang", "target_lang", "left_pad_source", "left_pad_target",
    "truncate_source", "max_source_positions", "max_target_positions",
)  # fmt: skip

# another name of an option of fairseq → the name that a block has
_OTHER_NAMES = {
    "max_sentences": "batch_size", "max_sentences_valid": "batch_size_valid",
    "remove_bpe": "post_process", "combine_val": "combine_valid_subsets",
    "nval": "max_valid_steps", "local_rank": "device_id",
    "save_async": "write_checkpoints_asynchronously",
}  # fmt: skip

# later tools read a checkpoint with the layers of `train.user_dir`
_UP_TO_TRAINING = ("data", "corpus", "clean", "launch", "train", "finetune")

Options = Annotated[dict[str, Scalar], Field(default_factory=dict)]


def _ended(block: dict[str, Any], inherited: dict[str, Any]) -> dict[str, Any]:
    """Return a block of training whose polynomial decay ends at the last update."""
    whole = inherited | block
    is_open = whole.get("lr_scheduler") == "polynomial_decay" and "total_num_update" not in whole
    last = whole.get("max_update") if is_open else None
    return block if last is None else {"total_num_update": last} | block


class Configuration(BlockOptions):
    """Hold a training run and what follows it: a text of pieces has `data`, one of words `corpus`.

    `finetune` has only what differs from `train`. A step whose block is empty is left out. Further
    blocks are named like a registered measure, which is taken even if its block is empty.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Scalar]]

    data: PieceSettings | None = None
    corpus: dict[str, Scalar] | None = None
    clean: Options
    launch: Options
    train: dict[str, Scalar]
    finetune: Options
    average: AverageSettings = AverageSettings()
    generate: Options
    evaluate: Options

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the blocks; the later command has the facts that a checkpoint does not give it.

        A polynomial decay ends at the last update, unless `total_num_update` says otherwise.
        """
        block, names = ("generate", _FACTS[1:]) if "data" in values else ("evaluate", ("task",))
        train, own, finetune = (values.get(name, {}) for name in ("train", block, "finetune"))
        if "train" in values and isinstance(train, dict) and isinstance(finetune, dict):
            if {"max_update", "lr_scheduler"} & finetune.keys():  # else it inherits the end, too
                values = {**values, "finetune": _ended(finetune, train)}
            values = {**values, "train": _ended(train, {})}
        if isinstance(train, dict) and isinstance(own, dict):
            values = {**values, block: {n: train[n] for n in names if n in train} | own}
        return values

    @model_validator(mode="after")
    def _has_text(self) -> "Configuration":
        if (self.data is None) == (self.corpus is None):
            raise ValueError(
                "needs one of the blocks data (translation) and corpus (language model)"
            )
        return self

    @model_validator(mode="after")
    def _keeps_enough_checkpoints(self) -> "Configuration":
        if self._number("save_interval_updates", 0) > 0:
            kept = {"keep_interval_updates": self._number("keep_interval_updates", -1)}
        else:
            kept = {"keep_last_epochs": self._number("keep_last_epochs", -1)}
            kept["max_epoch"] = self._number("max_epoch", 0) or -1
            kept["no_epoch_checkpoints"] = 1 if self.train.get("no_epoch_checkpoints") else -1
        for option, number in kept.items():
            if 0 <= number < self.average.last:
                raise ValueError(
                    f"average.last is {self.average.last}, but train.{option} is "
                    f"{self.train[option]}; keep at least as many checkpoints as are averaged"
                )
        return self

    def _number(self, name: str, default: int) -> int:
        value = self.train.get(name, default)
        if not isinstance(value, int):
            raise ValueError(f"train.{name}: expected a whole number, got {value!r}")
        return value

    @property
    def measures(self) -> list[str]:
        """Return the configured measures of the test set."""
        return sorted(self.__pydantic_extra__)

    def options(self, tool: str) -> dict[str, Any]:
        """Return the options of a block, with those that follow from other blocks."""
        if tool == "data":
            return self.data.model_dump(exclude_none=True) if self.data else {}
        own: dict[str, Any] = getattr(self, tool) or {}
        if tool not in _UP_TO_TRAINING and "user_dir" in self.train:
            own = {"user_dir": self.train["user_dir"], **own}
        if tool == "finetune":
            return {**self.train, **own}
        if tool == "generate" and self.data:
            return {**_TEXT_OF_PIECES[self.data.algorithm], **own}
        return own

    def text(self) -> str:
        """Return YAML, everything resolved; equal configurations give equal text."""
        return yaml.safe_dump(self.blocks(), sort_keys=True, allow_unicode=True)

    def blocks(self) -> dict[str, Any]:
        """Return the given values as plain Python values."""
        return {name: block for name, block in self.model_dump().items() if block is not None}


def load_tree(path: Path, overrides: list[str]) -> Tree:
    """Load a file, its bases and overrides (`key=value` for `train`, or `block.key=value`)."""
    tree = blocks.read_tree(path)
    for assignment in overrides:
        blocks.override(tree, assignment, default_block="train")
    return tree


def validate(tree: Tree) -> Configuration:
    """Return the configuration in a tree. Names of fairseq's options are not checked here."""
    known = [*Configuration.model_fields, *measure_names()]
    problems = [
        f"{tree.place((block,))}: {block}: unknown key{did_you_mean(block, known)}"
        for block in tree.values
        if block not in known
    ]
    try:
        values = {block: value for block, value in tree.values.items() if block in known}
        configuration = Configuration.model_validate(values)
        problems += _wrong_options(configuration, tree)
    except ValidationError as error:
        problems += explained_places(Configuration, tree, error)
    problems += [
        f"{tree.place((block, option))}: {block}.{option}: set by the recipe, remove it"
        for block, options in tree.values.items()
        if isinstance(options, dict)
        for option in set_by_recipes(block)
        if option in options
    ]
    problems += [*_other_names(tree), *_contradictions(tree)]
    if problems:
        raise ConfigurationError("\n".join(problems))
    return configuration


def _wrong_options(configuration: Configuration, tree: Tree) -> Iterator[str]:
    """Yield options that the models of our own blocks refuse; other checks name some of them."""
    for block, model in MODELS.items():
        own = getattr(configuration, block)
        if isinstance(own, dict):
            try:
                model.model_validate({n: v for n, v in own.items() if "-" not in n})
            except ValidationError as error:
                yield from explained_places(model, tree, error, (block,))


def _other_names(tree: Tree) -> Iterator[str]:
    """Yield keys that are a second name of an option, by which it could be given twice."""
    for block, options in tree.values.items():
        is_fairseqs = PROGRAMS.get(block, "").startswith("fairseq")
        for key in options if isinstance(options, dict) else ():
            name = key.replace("-", "_")
            name = _OTHER_NAMES.get(name, name) if is_fairseqs else name
            if key != name:
                yield f"{tree.place((block, key))}: {block}.{key}: write {block}.{name} instead"


def _contradictions(tree: Tree) -> Iterator[str]:
    """Yield what later blocks say otherwise of the model or its text."""
    given = {name: block for name, block in tree.values.items() if isinstance(block, dict)}
    train = given.get("train", {})
    facts = {n: (train.get(n), f"train.{n} is {train.get(n)!r}") for n in _FACTS}
    pieces = str(given.get("data", {}).get("algorithm", "sentencepiece"))
    text = {"bpe": None, "tokenizer": None} | _TEXT_OF_PIECES.get(pieces, {})
    joined = {n: (v, f"data.algorithm is {pieces!r}") for n, v in text.items()}
    for block, options in given.items():
        known = facts | (joined if block == "generate" and "data" in given else {})
        for name in sorted(known.keys() & options.keys()):
            value, fact = known[name]
            if str(options[name]) != str(value):
                yield (
                    f"{tree.place((block, name))}: {block}.{name}: {options[name]!r}, but {fact}; "
                    f"remove {block}.{name}, which follows {fact.partition(' ')[0]}"
                )


def load(path: Path, overrides: list[str] | None = None) -> Configuration:
    """Load by `load_tree`, then `validate`."""
    return validate(load_tree(path, overrides or []))
