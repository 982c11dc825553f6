"""Registries of policies by name: vrm's own, those of extensions (`vrm.system.plugins`), and a user's own by dotted
path (`my_policies:mine`)."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import traceback
from fractions import Fraction
from types import GeneratorType
from typing import Any
from collections.abc import Callable, Iterator, Mapping

from vrm.model.job import Infeasible
from vrm.system import plugins
from vrm.system.errors import UserError

_DOTTED = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
_NAME = re.compile(r"^[A-Za-z_][\w-]*$")
_FILE = re.compile(r"^(?:.*/)?([^/:]*)\.py(?::(\w*))?$")


Readers = Mapping[str, tuple[Callable[[str], Any], str]]
"""For each parameter, the function that reads its value (raises ValueError for a wrong one), and a description of
valid values."""


def reads(readers: Readers) -> Callable[[Any], Any]:
    """Decorator: set how the parameters that may follow a policy's name are read."""
    def enter(policy: Any) -> Any:
        policy.readers = readers
        return policy
    return enter


class PolicyError(UserError, ValueError):
    """A policy has a wrong name or cannot be loaded; the text says why and what to do."""


class Registry:
    """Policies of one sort by lower-case name. `what` names the sort in messages; `group` is the group of entry points
    with which extensions add policies, if they can."""

    def __init__(self, what: str, group: str = "") -> None:
        self.what, self.group = what, group
        self._known: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[Any], Any]:
        """Decorator that registers a policy. Raises ValueError if the name is taken."""
        def enter(policy: Any) -> Any:
            if name.lower() in self._known:
                raise ValueError(f"{self.what} {name} is registered already")
            self._known[name.lower()] = policy
            return policy
        return enter

    @property
    def names(self) -> list[str]:
        """vrm's own names: the registered ones, then those of its extensions."""
        return [*self._known, *(plugin.name for plugin in plugins.own(self.group))]

    @property
    def added(self) -> list[str]:
        """The names that installed packages add."""
        return [plugin.name for plugin in plugins.installed(self.group)] if self.group else []

    def knows(self, text: str) -> bool:
        """Return whether there is a policy with that name."""
        name = text.strip().lower()
        return (name in self._known or plugins.find_own(self.group, name) is not None
                or name in map(str.lower, self.added))

    def get(self, text: str) -> Any:
        """Return vrm's own policy with that name, or None. Raises PolicyError if it cannot be loaded."""
        name = text.strip().lower()
        if name in self._known:
            return self._known[name]
        plugin = plugins.find_own(self.group, name)
        return None if plugin is None else _loaded(plugin)

    def own(self, text: str) -> Any:
        """Return the user's function or class with that dotted path, or that of an installed package with that name;
        None if the text is neither. Raises PolicyError if it cannot be loaded."""
        text = text.strip()
        if is_dotted(text):
            return load_dotted(text)
        if (not self.group or text.lower() in self._known or not _NAME.match(text)
                or plugins.find_own(self.group, text) is not None):
            return None
        try:
            plugin = plugins.find(self.group, text)
        except plugins.PluginError as error:
            raise PolicyError(str(error)) from error
        return None if plugin is None else _loaded(plugin)

    def find(self, text: str) -> Any:
        """Return the policy with that name or dotted path. Raises PolicyError if there is none."""
        policy = self.get(text)
        if policy is None:
            policy = self.own(text)
        if policy is not None:
            return policy
        refuse_file(text)
        raise PolicyError(self.unknown(text))

    def make(self, text: str, *arguments: Any) -> Any:
        """Call the policy with the arguments and with the parameters that follow its name, as in `weighted window=50`
        (see `reads`), and return the result. Raises PolicyError."""
        name, *given = text.split() or [text]
        make = self.find(name)
        readers: Readers = getattr(make, "readers", {})
        known = [each for each in inspect.signature(make).parameters if each in readers] if readers else []
        values: dict[str, Any] = {}
        for word in given:
            key, _, value = word.partition("=")
            if key not in known:
                close = difflib.get_close_matches(key, known, 1)
                raise PolicyError(f"{self.what} `{text.strip()}`: {name} has no parameter `{key}`; "
                                  + (f"did you mean {close[0]}?" if close else
                                     f"it has {', '.join(known)}" if known else "it has none"))
            read, wanted = readers[key]
            try:
                values[key] = read(value)
            except (ValueError, ZeroDivisionError):
                raise PolicyError(f"{self.what} `{text.strip()}`: {key} is `{value}`; give {wanted}"
                                  ) from None
        return make(*arguments, **values)

    def unknown(self, text: str) -> str:
        """Return the message for an unknown name."""
        known = [*self.names, *self.added]
        word = text.strip().lower()
        near = difflib.get_close_matches(word, known, len(known) or 1)
        close = max(filter(near.__contains__, known), default="",  # of equally near ones the first
                    key=lambda name: difflib.SequenceMatcher(None, name, word).ratio())
        hint = f"did you mean {close}?" if close else f"known: {', '.join(known)}"
        return f"unknown {self.what} `{text}`; {hint} (or module:function for your own)"


def needed(option: str) -> Any:
    """Return what an extension does for an option of the rules. Raises PolicyError if no extension has it."""
    try:
        return plugins.need("vrm.options", option)
    except plugins.PluginError as error:
        raise PolicyError(str(error)) from error


def _loaded(plugin: plugins.Plugin) -> Any:
    """Load what an extension adds. Raises PolicyError if that fails."""
    try:
        return plugins.load(plugin)
    except plugins.PluginError as error:
        raise PolicyError(str(error)) from error


def whole(text: str) -> int:
    """Read a parameter that is an integer from 1 on."""
    number = int(text)
    if not 1 <= number <= 1_000_000:
        raise ValueError(text)
    return number


def positive_number(text: str) -> Fraction:
    """Read a parameter that is a number above 0."""
    number = Fraction(text)
    if not 0 < number <= 1_000_000:
        raise ValueError(text)
    return number


def guarded(text: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a user's function, named by `text`: exceptions from it, or from a generator that it returns, become
    PolicyError with the place in the user's file."""
    def call(*arguments: Any) -> Any:
        try:
            found = own(*arguments)
        except (PolicyError, Infeasible):
            raise
        except (Exception, SystemExit) as error:
            raise failure(text, error) from error
        return steps(found) if isinstance(found, GeneratorType) else found

    def steps(found: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from found
        except (PolicyError, Infeasible):
            raise
        except (Exception, SystemExit) as error:
            raise failure(text, error) from error
    return call


def failure(text: str, error: BaseException) -> PolicyError:
    """Return the PolicyError for an exception in a user's code, with its place: the last executed line in the first of
    the user's files in the traceback."""
    lines = [(frame.f_code.co_filename, line)
             for frame, line in traceback.walk_tb(error.__traceback__)
             if frame.f_globals.get("__name__", "").partition(".")[0] not in ("vrm", "importlib")]
    place = next((f" at {file}:{line}" for file, line in reversed(lines)
                  if file == lines[0][0]), "")
    return PolicyError(f"`{text.strip()}` failed{place}: {type(error).__name__}: {error}")


def where(own: Any) -> str:
    """Return the place of a user's function, or the current line of a generator, as ` at FILE:LINE`; "" if unknown."""
    frame = getattr(own, "gi_frame", None)
    if frame is not None:
        return f" at {frame.f_code.co_filename}:{frame.f_lineno}"
    code = getattr(getattr(own, "__func__", own), "__code__", None)
    return f" at {code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def own_name(own: Any) -> str:
    """Return the name of a user's object or function."""
    return str(getattr(own, "name", getattr(own, "__name__", type(own).__name__)))


def shortened(value: Any) -> str:
    """Format a value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def is_dotted(text: str) -> bool:
    """Return whether the text has the form `package.module:name`."""
    return bool(_DOTTED.match(text.strip())) and ".py:" not in text


def refuse_file(text: str) -> None:
    """Raise PolicyError, with what to write instead, if the text is the path of a file such as `./mine.py:first`."""
    found = _FILE.match(text.strip())
    if found:
        raise PolicyError(f"`{text.strip()}` is the path of a file; write "
                          f"`{found[1]}:{found[2] or 'FUNCTION'}`: {found[1]}.py is found in the "
                          "directory of the configuration (by `vrm simulate --algorithm` and its "
                          "like: in the current one) or on PYTHONPATH")


def load_dotted(text: str) -> Any:
    """Return the object `package.module:name`. Raises PolicyError if it cannot be loaded."""
    module, _, name = text.strip().partition(":")
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise PolicyError(f"`{text}`: {error}; put {module.partition('.')[0]}.py into the directory of "
                          "the configuration (for options of `vrm simulate`: into the current "
                          "one), or its directory on PYTHONPATH") from error
    except (Exception, SystemExit) as error:  # user code: any exception is reported
        raise failure(text, error) from error
    found = getattr(loaded, name, None)
    if found is None:
        raise PolicyError(f"`{text}`: module {module} has no `{name}`")
    if not callable(found):
        raise PolicyError(f"`{text}` is not callable")
    return found
