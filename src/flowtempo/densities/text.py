"""The text form of densities: `logit_normal(-0.75, 1)`, `mixture(table('density.json'), 0.1)`, ..."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

from flowtempo.densities.base import Density
from flowtempo.densities.closed import LogitNormal, Uniform
from flowtempo.densities.composed import Mixture, Truncated
from flowtempo.densities.table import Tabulated
from flowtempo.errors import UserError


def _table(path: str) -> Density:
    return Tabulated.load(path)


DENSITIES: dict[str, Callable[..., Density]] = {
    "uniform": Uniform,
    "logit_normal": LogitNormal,
    "mixture": Mixture,
    "truncated": Truncated,
    "table": _table,
}
"""Names that `parse` knows and what they build."""

# Kinds of argument, by parameter name; all others are numbers.
_DENSITY_ARGUMENTS = {"base"}
_PATH_ARGUMENTS = {"path"}


def parse(text: str) -> Density:
    """Read a density from its text form.

    Args:
        text: A name, a call of a name with numbers, densities, or a quoted path, positional or by keyword,
            or a bare path that ends in `.json`.

    Returns:
        The density; `parse(str(density)) == density`.

    Raises:
        UserError: If the text has another form, a name is unknown, or an argument is wrong.
    """
    if not isinstance(text, str):
        raise UserError(f"a density must be a text such as {_example()}, not {type(text).__name__}")
    stripped = text.strip()
    if stripped.endswith(".json"):
        return Tabulated.load(stripped)
    try:
        tree = ast.parse(stripped, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"cannot read the density {text!r}: expected something like {_example()}") from error
    try:
        return _density(tree, text)
    except RecursionError as error:
        raise UserError("cannot read the density: it is nested too deeply") from error


def _density(node: ast.expr, text: str) -> Density:
    call = node if isinstance(node, ast.Call) else None
    name = call.func if call is not None else node
    if not isinstance(name, ast.Name):
        raise UserError(f"cannot read the density {text!r}: expected something like {_example()}")
    if name.id not in DENSITIES:
        raise UserError(f"unknown density {name.id!r} in {text!r}: use one of {', '.join(DENSITIES)}")
    build = DENSITIES[name.id]
    signature = inspect.signature(build)
    usage = f"{name.id}({', '.join(signature.parameters)})"
    arguments = call.args if call is not None else []
    keywords = call.keywords if call is not None else []
    if any(isinstance(argument, ast.Starred) for argument in arguments):
        raise UserError(f"cannot read the density {text!r}: use {usage}")
    named: dict[str, ast.expr] = {}
    for keyword in keywords:
        if keyword.arg is None or keyword.arg in named:
            raise UserError(f"cannot read the density {text!r}: use {usage}")
        named[keyword.arg] = keyword.value
    try:
        bound = signature.bind(*arguments, **named)
    except TypeError as error:
        raise UserError(f"wrong arguments in {text!r} ({error}): use {usage}") from error
    return build(**{key: _argument(key, value, name.id, text) for key, value in bound.arguments.items()})


def _argument(key: str, node: ast.expr, name: str, text: str) -> Density | float | str:
    if key in _DENSITY_ARGUMENTS:
        if isinstance(node, ast.Constant):
            raise UserError(f"{name}: {key} = {ast.unparse(node)} in {text!r} must be a density")
        return _density(node, text)
    if key in _PATH_ARGUMENTS:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        raise UserError(f"{name}: {key} in {text!r} must be a quoted path")
    sign = 1.0
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        sign = -sign if isinstance(node.op, ast.USub) else sign
        node = node.operand
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return sign * float(value)
        except OverflowError as error:
            raise UserError(f"{name}: {key} is too large a number") from error
    raise UserError(f"{name}: {key} = {ast.unparse(node)} in {text!r} must be a number")


def _example() -> str:
    return "'uniform', 'logit_normal(-0.75, 1)' or \"mixture(table('density.json'), 0.1)\""
