"""Text forms of densities, interpolants and weightings, such as `logit_normal(-0.75, 1)`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from flowtempo.errors import UserError

__all__ = ["Forms", "Reader", "number", "numbers", "path"]

T = TypeVar("T")
Reader = Callable[[ast.expr, str, str], Any]
"""Reads an argument from its node; is told where it stands, such as "mixture: base", and the whole text."""


def number(value: float) -> str:
    """Shortest text that reads back as the same number."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def path(node: ast.expr, where: str, text: str) -> str:
    """Read a quoted path."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise UserError(f"{where} in {text!r} must be a quoted path")


def numbers(node: ast.expr, where: str, text: str) -> list[float]:
    """Read a list of numbers in brackets."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_number(item, where, text) for item in node.elts]
    raise UserError(f"{where} = {ast.unparse(node)} in {text!r} must be a list of numbers, [0.1, 0.2]")


class Forms(Generic[T]):
    """A family of things that are written as a name, or as a call of a name.

    Args:
        noun: What one of them is called in messages.
        builders: What each name builds. A builder's parameters are numbers, except as `arguments` says.
        example: Some forms, for messages.
        arguments: How to read the parameters of these names; None stands for a member of this family.

    Attributes:
        builders: As given.
    """

    def __init__(
        self,
        noun: str,
        builders: dict[str, Callable[..., T]],
        example: str,
        arguments: Mapping[str, Reader | None] | None = None,
    ) -> None:
        self.noun = noun
        self.builders = builders
        self.example = example
        self._arguments = {key: reader or self.read for key, reader in (arguments or {}).items()}

    def parse(self, text: str) -> T:
        """Read a text form: a name, or a call of it with positional or keyword arguments.

        Raises:
            UserError: If the text has another form, a name is unknown, or an argument is wrong.
        """
        if not isinstance(text, str):
            raise UserError(
                f"{self._a_noun} must be a text such as {self.example}, not {type(text).__name__}"
            )
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._unreadable(text) from error
        try:
            return self._build(tree, text)
        except RecursionError as error:
            raise UserError(f"cannot read the {self.noun}: it is nested too deeply") from error

    def read(self, node: ast.expr, where: str, text: str) -> T:
        """Read a member of this family as an argument of another form; a `Reader`."""
        if isinstance(node, ast.Constant):
            raise UserError(f"{where} = {ast.unparse(node)} in {text!r} must be {self._a_noun}")
        return self._build(node, text)

    @property
    def _a_noun(self) -> str:
        return f"an {self.noun}" if self.noun[0] in "aeiou" else f"a {self.noun}"

    def _unreadable(self, text: str) -> UserError:
        return UserError(f"cannot read the {self.noun} {text!r}: expected something like {self.example}")

    def _build(self, node: ast.expr, text: str) -> T:
        call = node if isinstance(node, ast.Call) else None
        name = call.func if call is not None else node
        if not isinstance(name, ast.Name):
            raise self._unreadable(text)
        if name.id not in self.builders:
            known = ", ".join(self.builders)
            raise UserError(f"unknown {self.noun} {name.id!r} in {text!r}: use one of {known}")
        build = self.builders[name.id]
        signature = inspect.signature(build)
        usage = f"{name.id}({', '.join(signature.parameters)})"
        arguments = call.args if call is not None else []
        keywords = call.keywords if call is not None else []
        if any(isinstance(argument, ast.Starred) for argument in arguments):
            raise UserError(f"cannot read the {self.noun} {text!r}: use {usage}")
        named: dict[str, ast.expr] = {}
        for keyword in keywords:
            if keyword.arg is None or keyword.arg in named:
                raise UserError(f"cannot read the {self.noun} {text!r}: use {usage}")
            named[keyword.arg] = keyword.value
        try:
            bound = signature.bind(*arguments, **named)
        except TypeError as error:
            raise UserError(f"wrong arguments in {text!r} ({error}): use {usage}") from error
        return build(
            **{
                key: self._arguments.get(key, _number)(value, f"{name.id}: {key}", text)
                for key, value in bound.arguments.items()
            }
        )


def _number(node: ast.expr, where: str, text: str) -> float:
    shown = ast.unparse(node)
    sign = 1.0
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        sign = -sign if isinstance(node.op, ast.USub) else sign
        node = node.operand
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return sign * float(value)
        except OverflowError as error:
            raise UserError(f"{where} is too large a number") from error
    raise UserError(f"{where} = {shown} in {text!r} must be a number")
