"""From a command's typed signature to its arguments, with recipes, and mistakes told in one line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import json
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import docstring_parser
import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from flowtempo.errors import UserError
from flowtempo.recipes import resolve
from flowtempo.training import TrainConfig
from flowtempo.training.config import (
    config_parser,
    from_mapping,
    from_values,
    load_config,
    one_line,
    read_mapping,
    to_dict,
)
from flowtempo.training.run import CONFIG

FirstWord = Literal["RECIPE", "RUN"] | None
PRINT_CONFIG = "--print_config"


class _HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """jsonargparse's help (types and defaults) with the examples' line breaks kept."""


def call(module: ModuleType, name: str, words: Sequence[str]) -> int:
    """Parse `words` for the command that `module` defines and run it.

    Args:
        module: Holds a function called `name`, `EXAMPLES` (text for `--help`) and, when the command takes
            a recipe, `RECIPE_KEYS`: the recipe's sections that it uses; or when its parameter `run` may be
            left out, `RUN_KEYS`: the sections of the run's configuration that its options change.
        name: The command.
        words: What the person typed after it.

    Returns:
        The exit status: what the function returned, or 0.

    Raises:
        UserError: An argument or a recipe's key or value is wrong.
    """
    function: Callable[..., int | None] = getattr(module, name)
    recipe_keys: tuple[str, ...] = getattr(module, "RECIPE_KEYS", ())
    run_keys: tuple[str, ...] = getattr(module, "RUN_KEYS", ())
    first_word: FirstWord = "RECIPE" if recipe_keys else "RUN" if run_keys else None
    parser = build_parser(function, name, module.EXAMPLES, first_word)
    arguments = [_underscored(word, parser) for word in words]
    given: dict[str, str | None] = {"run": None} if first_word == "RUN" else {}
    if first_word == "RUN" and arguments and not arguments[0].startswith("-"):
        folder, *arguments = arguments
        given["run"] = folder
        arguments = [*_run_arguments(folder, run_keys, arguments), *arguments]
    elif first_word == "RECIPE":
        count = next((k for k, word in enumerate(arguments) if word.startswith("-")), len(arguments))
        arguments = [*_recipe_arguments(arguments[:count], recipe_keys), *arguments[count:]]
    if PRINT_CONFIG in arguments and TrainConfig in typing.get_type_hints(function).values():
        arguments.remove(PRINT_CONFIG)
        print(yaml.safe_dump(to_dict(_parse_config(arguments)), sort_keys=False), end="")
        return 0
    try:
        parsed = parser.parse_args(arguments)
        values = parser.instantiate(parsed)
    except argparse.ArgumentError as error:
        told = one_line(error)
        for parameter in _required_options(function):
            told = told.replace(f"required: {parameter}", f"required: --{parameter}")
        raise UserError(f"{told} (flowtempo {name} --help lists the options)") from error
    return function(**_keywords(function, values, given)) or 0


def build_parser(
    function: Callable[..., Any], name: str, examples: str, first_word: FirstWord = None
) -> ArgumentParser:
    """Generate a command's parser from its signature and docstring.

    A parameter without default is positional or, when keyword-only, a required option; a `list[str]` takes
    any number of words; a `bool` is a flag; a `TrainConfig` spreads its keys over the command line;
    everything else becomes `--name VALUE`. `first_word` is what may stand before them all, and is not parsed
    here.
    """
    documentation = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {parameter.arg_name: parameter.description for parameter in documentation.params}
    first = ""
    if first_word == "RECIPE":
        first = (
            "RECIPE: a YAML file, or the name of one that ships (`flowtempo recipes` lists them); "
            "of several, the later override keys of the earlier\n\n"
        )
    elif first_word == "RUN":
        first = f"RUN: {described['run']}\n\n"
    parser = ArgumentParser(
        prog=f"flowtempo {name}",
        usage=_usage(function, name, first_word),
        description="\n\n".join(
            filter(None, [documentation.short_description, documentation.long_description])
        ),
        epilog=f"{first}examples:\n{examples.strip(chr(10))}",
        formatter_class=_HelpFormatter,
        exit_on_error=False,
    )
    hints = typing.get_type_hints(function)
    by_hand: set[str | int] = {"run"} if first_word == "RUN" else set()
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        help_text = described.get(parameter.name)
        if parameter.name in by_hand:
            continue
        if hint is TrainConfig:
            parser.add_class_arguments(TrainConfig, nested_key=None)
            parser.add_argument(
                PRINT_CONFIG, action="store_true", help="Print the recipe, all keys, and stop."
            )
        elif hint is bool:
            parser.add_argument(f"--{parameter.name}", action="store_true", help=help_text)
        elif parameter.default is not inspect.Parameter.empty:
            if hint != list[str]:
                continue
            parser.add_argument(f"--{parameter.name}", nargs="+", default=parameter.default, help=help_text)
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            parser.add_argument(f"--{parameter.name}", required=True, type=hint, help=help_text)
        elif hint == list[str]:
            parser.add_argument(parameter.name, nargs="*", type=str, default=[], help=help_text)
        else:
            continue
        by_hand.add(parameter.name)
    parser.add_function_arguments(function, as_positional=True, skip=by_hand)
    return parser


def load_recipe(name_or_path: str) -> dict[str, Any]:
    """Read a recipe and check every key against `TrainConfig`.

    Args:
        name_or_path: A YAML file, or the name of one that ships in the package.

    Returns:
        The recipe's mapping as written (not filled with defaults).

    Raises:
        UserError: No such recipe, no YAML mapping, an unknown key or a wrong value; the file is named.
    """
    path = resolve(name_or_path)
    content = read_mapping(path)
    known = _leaf_keys(config_parser().get_defaults())
    for key in _flat_keys(content):
        raise UserError(f"{path}: key {key!r}: write sections as nested keys, not with a dot")
    for key in _leaf_keys(content):
        if not any(f"{key}.".startswith(f"{other}.") or other.startswith(f"{key}.") for other in known):
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
            raise UserError(f"{path}: unknown key {key!r}; {hint}")
    from_mapping(content, path)
    return content


def config_from_recipes(names_or_paths: Sequence[str], overrides: Sequence[str] = ()) -> TrainConfig:
    """Lay recipes over each other, apply `--key=value` overrides and build the training configuration.

    Raises:
        UserError: A key or value is wrong.
    """
    return _parse_config([*_recipe_arguments(names_or_paths, _field_names()), *overrides])


def _parse_config(words: Sequence[str]) -> TrainConfig:
    parser = config_parser()
    try:
        return from_values(parser.instantiate(parser.parse_args(words)))
    except argparse.ArgumentError as error:
        raise UserError(f"{one_line(error)} (only a recipe and its keys can be given here)") from error


def _required_options(function: Callable[..., Any]) -> list[str]:
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is inspect.Parameter.empty
    ]


def _usage(function: Callable[..., Any], name: str, first_word: FirstWord) -> str:
    words = ["flowtempo", name]
    if first_word:
        words.append("[RECIPE ...]" if first_word == "RECIPE" else f"[{first_word}]")
    hints = typing.get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is inspect.Parameter.empty and hints[parameter.name] is not TrainConfig:
            word = parameter.name.upper()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                words.append(f"--{parameter.name} {word}")
            else:
                words.append(
                    f"[{word.removesuffix('S')} ...]" if hints[parameter.name] == list[str] else word
                )
    return " ".join([*words, "[options]"])


def _underscored(word: str, parser: ArgumentParser) -> str:
    """`--probe-every` as the option `--probe_every`; a word that so becomes no option stays as it is."""
    name, equals, value = word.partition("=")
    plain = f"--{name.removeprefix('--').replace('-', '_')}"
    known = parser._option_string_actions
    if not name.startswith("--") or name in known or not {plain, plain.partition(".")[0]} & known.keys():
        return word
    return f"{plain}{equals}{value}"


def _run_arguments(folder: str, keys: tuple[str, ...], rest: list[str]) -> list[str]:
    """Sections of a run's configuration; one whose kind is given anew starts afresh."""
    if not Path(folder).is_dir():
        raise UserError(f"{folder}: no such run folder")
    content = to_dict(load_config(Path(folder) / CONFIG))
    kept = {
        key: content[key]
        for key in keys
        if not any(word.partition("=")[0] in (f"--{key}", f"--{key}.kind") for word in rest)
    }
    return _as_arguments(kept)


def _recipe_arguments(names_or_paths: Sequence[str], keys: tuple[str, ...]) -> list[str]:
    merged: dict[str, Any] = {}
    for name_or_path in names_or_paths:
        merged = _laid_over(merged, load_recipe(name_or_path))
    return _as_arguments({key: merged[key] for key in keys if key in merged})


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Keys of both, section by section, those of `above` where both have one."""
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = _laid_over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return both


def _as_arguments(values: dict[str, Any]) -> list[str]:
    # JSON is YAML, which is what the parser reads values as; later words override single keys of a section.
    # A bare text is taken as it stands.
    return [
        f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()
    ]


def _flat_keys(content: dict[Any, Any]) -> list[Any]:
    """Keys that are no plain words: a dotted one would be passed over without a word."""
    here = [key for key in content if not isinstance(key, str) or "." in key]
    return here + [key for value in content.values() if isinstance(value, dict) for key in _flat_keys(value)]


def _leaf_keys(content: dict[str, Any] | Namespace, prefix: str = "") -> list[str]:
    keys = []
    for key, value in vars(content).items() if isinstance(content, Namespace) else content.items():
        name = f"{prefix}{key}"
        if isinstance(value, (dict, Namespace)):
            keys += _leaf_keys(value, f"{name}.")
        else:
            keys.append(name)
    return keys


def _field_names() -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(TrainConfig))


def _keywords(
    function: Callable[..., Any], values: Namespace, given: dict[str, str | None]
) -> dict[str, Any]:
    hints = typing.get_type_hints(function)
    keywords: dict[str, Any] = {}
    for name in inspect.signature(function).parameters:
        if hints[name] is TrainConfig:
            keywords[name] = from_values(values)
        elif name in given:
            keywords[name] = given[name]
        else:
            keywords[name] = values[name]
    return keywords
