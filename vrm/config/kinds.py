"""What settings take, in our words: complaints with an example, whatever way a kind is missed."""

from __future__ import annotations

from typing import Any
from collections.abc import Callable

from pydantic import ConfigDict, ValidationError, WrapValidator
from pydantic.alias_generators import to_pascal
from pydantic_core import PydanticCustomError

from vrm.config.yaml_reader import found
from vrm.model.forms.hosts import expand

STRICT = ConfigDict(frozen=True, extra="forbid", alias_generator=to_pascal, validate_default=True, defer_build=True)
"""Of every group of keys."""

OURS = "setting"  # pydantic's type for the complaints that are in our words already


def refuse(value: Any, wanted: str, example: str) -> PydanticCustomError:
    """The complaint about a value."""
    context = {"message": f"found {found(value)}, wanted {wanted}", "example": example}
    return PydanticCustomError(OURS, "{message}", context)


def kind(wanted: str, example: str, empty: Any = None) -> WrapValidator:
    """Say in our words, with an example, what a setting takes, whatever way it is missed.

    `empty` is taken where a key stands without a value.
    """

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(empty if value is None else value)
        except ValidationError as error:
            if any(part["type"] in (OURS, "extra_forbidden", "missing") for part in error.errors()):
                raise  # a part inside has said what is wrong
            raise refuse(value, wanted, example) from None

    return WrapValidator(check)


def group(example: str) -> WrapValidator:
    """A value must be a group of keys, such as `example`; an empty one is allowed."""
    return kind("a group of keys", example, empty={})


def defaults() -> Any:
    """A group of which nothing is said; validation makes it what its type is."""
    return {}


def strip(value: Any) -> Any:
    """The value without blanks around it, where it is a text."""
    return value.strip() if isinstance(value, str) else value


def lower(value: Any) -> Any:
    """The value in lower case and without blanks around it, where it is a text."""
    return value.strip().lower() if isinstance(value, str) else value


def hosts_like(example: str, none: bool = False) -> Callable[[Any], str]:
    """A reader of the text of a range of hosts, which `expand` understands; `example` has the key. With `none` it may
    be empty."""
    def read(value: Any) -> str:
        text = str(value).strip()
        try:
            if value != "" or not none:
                expand(text)
        except ValueError as error:
            raise PydanticCustomError(OURS, "{message}", {
                "message": str(error), "hint": f"for example {example}"}) from None
        return text
    return read
