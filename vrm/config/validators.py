"""Validators of configuration values with vrm's own error messages: each has an example, whatever the mistake is."""

from __future__ import annotations

from typing import Any
from collections.abc import Callable

from pydantic import ConfigDict, ValidationError, WrapValidator
from pydantic.alias_generators import to_pascal
from pydantic_core import PydanticCustomError

from vrm.config.yaml_reader import found
from vrm.model.forms.hosts import expand

STRICT = ConfigDict(frozen=True, extra="forbid", alias_generator=to_pascal, validate_default=True, defer_build=True)
"""Pydantic configuration of every group of keys."""

OURS = "setting"  # pydantic error type of messages that are in vrm's words already


def refuse(value: Any, wanted: str, example: str) -> PydanticCustomError:
    """Return the error for a value of another kind than `wanted`."""
    context = {"message": f"found {found(value)}, wanted {wanted}", "example": example}
    return PydanticCustomError(OURS, "{message}", context)


def kind(wanted: str, example: str, empty: Any = None) -> WrapValidator:
    """Return a validator that reports, with an example, what a setting accepts, for any invalid value.

    `empty` is used for a key without a value.
    """

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(empty if value is None else value)
        except ValidationError as error:
            if any(part["type"] in (OURS, "extra_forbidden", "missing") for part in error.errors()):
                raise  # an inner value has reported the mistake
            raise refuse(value, wanted, example) from None

    return WrapValidator(check)


def group(example: str) -> WrapValidator:
    """Return a validator for a group of keys such as `example`; it may be empty."""
    return kind("a group of keys", example, empty={})


def defaults() -> Any:
    """Return the value of a group that is not given; validation converts it to the group's type."""
    return {}


def strip(value: Any) -> Any:
    """Return a text without surrounding blanks; other values unchanged."""
    return value.strip() if isinstance(value, str) else value


def lower(value: Any) -> Any:
    """Return a text in lower case and without surrounding blanks; other values unchanged."""
    return value.strip().lower() if isinstance(value, str) else value


def hosts_like(example: str, none: bool = False) -> Callable[[Any], str]:
    """Return a validator for a range of hosts that `expand` understands; `example` includes the key. With `none` the
    text may be empty."""
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
