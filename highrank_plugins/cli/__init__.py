"""The `highrank` command: thin subcommands over the packages of this project.

A new subcommand is a function in a module of this package and a line in `COMMANDS`. A module is
imported only when its subcommand runs or its help is shown, so the top of each must be light:
torch, fairseq and pydantic are imported inside the functions (`highrank --help` has 0.3 s).
"""

import sys
from importlib import import_module
from typing import Annotated

import typer

import highrank_plugins

# subcommand → function that typer turns into it (or a group of them), as module:name
COMMANDS = {
    "analyse": "highrank_plugins.cli.analyse:analyse",
    "archs": "highrank_plugins.cli.archs:archs",
    "average": "highrank_plugins.cli.average:average",
    "bench": "highrank_plugins.cli.bench:bench",
    "best-checkpoint": "highrank_plugins.cli.results:best_checkpoint",
    "binarise": "highrank_plugins.cli.text:binarise",
    "cache-eval": "highrank_plugins.cli.evaluate:cache_eval",
    "card": "highrank_plugins.cli.card:card",
    "check-text": "highrank_plugins.cli.text:check_text",
    "clean-texts": "highrank_plugins.cli.bitext:clean_texts",
    "collect": "highrank_plugins.cli.collect:collect",
    "command": "highrank_plugins.cli.configure:command",
    "configure": "highrank_plugins.cli.configure:configure",
    "corpus-files": "highrank_plugins.cli.fetch:corpus_files",
    "dialogue-files": "highrank_plugins.cli.dialogue:dialogue_files",
    "dialogue-score": "highrank_plugins.cli.dialogue:dialogue_score",
    "dialogue-summary": "highrank_plugins.cli.dialogue:dialogue_summary",
    "dialogue-text": "highrank_plugins.cli.dialogue:dialogue_text",
    "doctor": "highrank_plugins.cli.doctor:doctor",
    "dynamic-eval": "highrank_plugins.cli.evaluate:dynamic_eval",
    "export": "highrank_plugins.cli.export:export",
    "extract": "highrank_plugins.cli.fetch:extract",
    "fetch": "highrank_plugins.cli.fetch:fetch",
    "fetch-corpus": "highrank_plugins.cli.fetch:fetch_corpus",
    "generate": "highrank_plugins.cli.generate:generate",
    "import": "highrank_plugins.cli.export:import_model",
    "launch": "highrank_plugins.cli.launch:launch",
    "lm-corpus": "highrank_plugins.cli.lm_corpus:lm_corpus",
    "lm-score": "highrank_plugins.cli.results:lm_score",
    "lm-summary": "highrank_plugins.cli.results:lm_summary",
    "pieces": "highrank_plugins.cli.text:pieces",
    "progress": "highrank_plugins.cli.progress:progress",
    "published": "highrank_plugins.cli.published:published",
    "record": "highrank_plugins.cli.results:record",
    "results-table": "highrank_plugins.cli.results_table:results_table",
    "score": "highrank_plugins.cli.results:score",
    "seeds-table": "highrank_plugins.cli.results_table:seeds_table",
    "setting": "highrank_plugins.cli.configure:setting",
    "summary": "highrank_plugins.cli.results:summary",
    "text-files": "highrank_plugins.cli.bitext:text_files",
    "training-space": "highrank_plugins.cli.configure:training_space",
    "unpack-texts": "highrank_plugins.cli.bitext:unpack_texts",
    "user-dir": "highrank_plugins.cli.user_dir:user_dir",
}


def main() -> None:
    """Entry point of the console script. Exit code 2 for an unknown subcommand or option."""
    build_app(sys.argv[1:])(prog_name="highrank")


def build_app(arguments: list[str]) -> typer.Typer:
    """The typer app with the subcommand that `arguments` begin with, or with all (for the help)."""
    app = typer.Typer(
        callback=_options,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    named = arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS
    for name in named:
        module, function = COMMANDS[name].split(":")
        added = getattr(import_module(module), function)
        if isinstance(added, typer.Typer):
            app.add_typer(added, name=name)
        else:
            app.command(name)(added)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"highrank_plugins {highrank_plugins.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """High-rank output layers for torch and fairseq."""
