"""Reads the rules among the fields of a family's configurations from the kernels' headers, where
kernels/common/rules.h says how they are written.

A rule is an expression in C that the compiler of the host and that of the device read, too. This
module reads what such an expression may have, and makes Python of it: integers, fields of a
configuration, operators without side effects, enumerators that are given a value, and functions of
a configuration and integers whose bodies are constants and a `return`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

from .config import Config, converts, is_latent, multiplies_e4m3, operand_dtype
from .facts import Arch, Dtype, Feature, Op

_KERNELS = Path(__file__).resolve().parents[1] / "kernels"
_TOKEN = re.compile(r'\s*("(?:\\.|[^"\\])*"|\w+|->|<<|>>|<=|>=|==|!=|&&|\|\||\S)')
_MACRO = re.compile(r"^#define (\w+_RULES)\(([^)]*)\)(.*)$", re.MULTILINE)
_FUNCTION = re.compile(
    r"\w+_CONSTANT int32_t (\w+)\(const flash_config_t \*c((?:,\s*int32_t \w+)*)\) \{\n(.*?)\n\}",
    re.DOTALL,
)
_ENUMERATOR = re.compile(r"\b([A-Z]\w+) = ([^,}]+)")
# Operators by how tightly they bind, the loosest first. Those of C that compare bind tighter than
# those of bits.
_BINARY = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_SIZES = {"float": 4, "int32_t": 4}


class RuleError(ValueError):
    """A header says something that this module does not read."""


def _quotient(a: int, b: int) -> int:
    """Divides as C does: towards 0."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return a - _quotient(a, b) * b


# Rules may use these names too, which no header of theirs defines by expressions.
_KNOWN: dict[str, Any] = {
    "_quotient": _quotient,
    "_remainder": _remainder,
    "dtype_size": lambda dtype: Dtype(dtype).size,
    "flash_operand_dtype": operand_dtype,
    "flash_converts": converts,
    "flash_is_latent": is_latent,
    "flash_multiplies_e4m3": multiplies_e4m3,
    **{f"FLASH_ARCH_{arch.name}": int(arch) for arch in Arch},
    **{f"FLASH_OP_{op.name}": int(op) for op in Op},
    **{f"FLASH_DTYPE_{dtype.name}": int(dtype) for dtype in Dtype},
    **{f"FLASH_FEATURE_{feature.name}": int(feature) for feature in Feature},
}

# ---- Expressions ----


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _split(tokens: Sequence[str], separator: str = ",") -> list[list[str]]:
    """Returns the parts between separators that lie in no parentheses."""
    parts: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == separator and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _uses(tokens: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields the names of macros that follow each other, with the tokens in their parentheses."""
    name, inner, depth = "", [], 0
    for token in tokens:
        depth -= token == ")"
        if depth > 0:
            inner.append(token)
        elif token == ")":
            yield name, inner
        elif token != "(":
            name, inner = token, []
        depth += token == "("


class _Expression:
    """Makes an expression of Python of the tokens of one of C."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens, self._at = list(tokens), 0

    def python(self) -> str:
        text = self._conditional()
        if self._next():
            raise RuleError(f"{self._next()!r} is not expected in {' '.join(self._tokens)!r}")
        return text

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self._next()
        if not token or (expected and token != expected):
            raise RuleError(f"{expected or 'more'!r} is missing in {' '.join(self._tokens)!r}")
        self._at += 1
        return token

    def _conditional(self) -> str:
        condition = self._binary(0)
        if self._next() != "?":
            return condition
        self._take()
        chosen = self._conditional()
        self._take(":")
        return f"({chosen} if {condition} else {self._conditional()})"

    def _binary(self, level: int) -> str:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while self._next() in _BINARY[level]:
            left = self._joined(left, self._take(), self._binary(level + 1))
        return left

    def _joined(self, left: str, operator: str, right: str) -> str:
        if operator in ("&&", "||"):
            return f"bool({left} {'and' if operator == '&&' else 'or'} {right})"
        if operator in ("/", "%"):
            return f"{'_quotient' if operator == '/' else '_remainder'}({left}, {right})"
        return f"({left} {operator} {right})"

    def _unary(self) -> str:
        if self._next() in ("!", "-"):
            return f"({'not ' if self._take() == '!' else '-'}{self._unary()})"
        if self._tokens[self._at : self._at + 3] in (["(", x, ")"] for x in ("int", "int32_t")):
            self._at += 3
            return self._unary()
        return self._postfix(self._primary())

    def _primary(self) -> str:
        token = self._take()
        if token == "(":
            inner = self._conditional()
            self._take(")")
            return f"({inner})"
        if token == "sizeof":
            self._take("(")
            size = _SIZES.get(self._take())
            self._take(")")
            if size is None:
                raise RuleError(f"sizeof is of no type that is known in {' '.join(self._tokens)!r}")
            return str(size)
        if token.startswith('"') or re.fullmatch(r"[A-Za-z_]\w*|\d+", token):
            return token
        raise RuleError(f"{token!r} is not expected in {' '.join(self._tokens)!r}")

    def _postfix(self, operand: str) -> str:
        while self._next() in ("->", "("):
            if self._take() == "->":
                operand = f"{operand}.{self._take()}"
                continue
            arguments = []
            while self._next() != ")":
                arguments.append(self._conditional())
                if self._next() != ")":
                    self._take(",")
            self._take(")")
            operand = f"{operand}({', '.join(arguments)})"
        return operand


# ---- Headers ----


def _constant(name: str, value: str) -> str:
    """Returns an assignment of Python."""
    return f"{name} = {_Expression(_tokens(value)).python()}"


def _function(name: str, parameters: str, body: str) -> str:
    """Returns a function of Python."""
    names = ["c", *re.findall(r"int32_t (\w+)", parameters)]
    lines = [f"def {name}({', '.join(names)}):"]
    for statement in filter(None, _split(_tokens(body), ";")):
        if statement[0] == "return":
            lines.append(f"    return {_Expression(statement[1:]).python()}")
        elif statement[:2] == ["const", "int32_t"] and statement[3] == "=":
            lines.append(f"    {statement[2]} = {_Expression(statement[4:]).python()}")
        else:
            raise RuleError(f"{name}() has more than constants and a return")
    return "\n".join(lines)


class Headers:
    """Holds the lists of rules in the text of some headers, and what they use."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).replace("\\\n", "")
        self._macros = {
            name: ([x.strip() for x in parameters.split(",")], _tokens(body))
            for name, parameters, body in _MACRO.findall(text)
        }
        self._names: dict[str, Any] = dict(_KNOWN)
        known = -1
        while known < len(self._names):  # a header may use one that is read after it
            known = len(self._names)
            for definition in _ENUMERATOR.findall(text):
                self._define(_constant, *definition)
            for definition in _FUNCTION.findall(text):
                self._define(_function, *definition)

    def _define(self, python: Callable[..., str], name: str, *definition: str) -> None:
        """Adds a name, but for one whose definition is not read: rules cannot use it."""
        if name in self._names:
            return
        try:
            exec(python(name, *definition), self._names)  # of the sources' own headers
            self._check(name, self._names[name])
        except (RuleError, NameError):
            self._names.pop(name, None)

    def _check(self, name: str, function: Any) -> None:
        """Raises RuleError where a function uses a name that is not known."""
        used = set(function.__code__.co_names) if callable(function) else set()
        unknown = used - {*self._names, *Config.__dataclass_fields__, "bool"}
        if unknown:
            raise RuleError(f"{name} uses {min(unknown)}, which is not read from a header")

    def __contains__(self, name: str) -> bool:
        return name in self._macros

    def computed(self, name: str, config: Config) -> int:
        """Returns what a function of a header computes of a configuration."""
        return self._names[name](config)

    def rules(self, name: str) -> list[Callable[[Config], str | None]]:
        """Returns the rules of a list, in their order: functions that return what is wrong with a
        configuration, or None. Raises RuleError."""
        if name not in self:
            raise RuleError(f"no header of the kernels defines {name}")
        return [self._rule(name, entry) for entry in self._entries(name, [["X"], ["c"]])]

    def _entries(self, name: str, arguments: Sequence[Sequence[str]]) -> Iterator[list[str]]:
        """Yields the tokens between the parentheses of each X of a list, those of lists in it
        too."""
        for used, inner in _uses(self._expanded(name, arguments)):
            if used == "X":
                yield inner
            elif used in self._macros:
                yield from self._entries(used, _split(inner))
            else:
                raise RuleError(f"{name} uses {used}, which is no list of rules")

    def _expanded(self, name: str, arguments: Sequence[Sequence[str]]) -> list[str]:
        parameters, body = self._macros[name]
        given = dict(zip(parameters, arguments))
        tokens: list[str] = []
        for token in body:
            if tokens and tokens[-1] == "#" and token in given:
                tokens[-1] = f'"{"".join(given[token])}"'
            else:
                tokens += given.get(token, [token])
        return tokens

    def _rule(self, name: str, entry: Sequence[str]) -> Callable[[Config], str | None]:
        condition, message, *values = _split(entry)
        if not message or not all(token.startswith('"') for token in message):
            raise RuleError(f"{name} has a rule without a message")
        shown = "".join(f"{_Expression(value).python()}, " for value in values)
        source = f"lambda c: None if {_Expression(condition).python()} else "
        rule = eval(f"{source}{' '.join(message)} % ({shown})", self._names)
        self._check(name, rule)
        return rule


@functools.cache
def _headers() -> Headers:
    return Headers("\n".join(path.read_text() for path in sorted(_KERNELS.glob("*/*_kernel.h"))))


@functools.cache
def rules_of(rows: str, is_optional: bool = False) -> tuple[Callable[[Config], str | None], ...]:
    """Returns the rules among the fields of rows, as sm90_fwd. Raises RuleError where no header has
    them, unless they are optional."""
    name = f"{rows.upper()}_RULES"
    return () if is_optional and name not in _headers() else tuple(_headers().rules(name))


def computed(name: str, config: Config) -> int:
    """Returns what a function of the kernels' headers, as sm90_warps, computes of a
    configuration."""
    return _headers().computed(name, config)
