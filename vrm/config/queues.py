"""The queues of a configuration by name: limits, nodes, priorities and expected waits."""

from __future__ import annotations

from typing import Annotated, Any
from collections.abc import Mapping

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from vrm.config.validators import OURS, STRICT, hosts_like, kind
from vrm.model.queues import EXPECTED_WAIT, Queues
from vrm.model.quantities import seconds_of
from vrm.model.forms.hosts import expand


def _time(value: Any) -> Any:
    """Return seconds of a time such as 90m or 1:30:00."""
    return seconds_of(str(value).strip().lower())


_Most = Annotated[int, Field(ge=0, le=1_000_000_000), kind("a whole number, 0 (no limit) or more", "4")]
_Time = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_time),
                  kind("seconds, or a time as 90m or 1:30:00; 0: none", "2h")]
_WORD = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
_DEBUG = "{debug: {ExpectedWait: 1h, MaxRunning: 2}, long: {Default: true}}"


class QueueKeys(BaseModel):
    """The keys of one queue in a configuration; see `vrm.model.queues.Queue`."""

    model_config = STRICT
    default: Annotated[bool, kind("true or false", "true")] = False
    priority: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000),
                        kind("a whole number", "10")] = 0
    expected_wait: Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_time),
                             kind("seconds above 0, or a time as 90m or 1:30:00", "1h")
                             ] = EXPECTED_WAIT
    max_running: _Most = 0
    max_cores: _Most = 0
    max_running_per_user: _Most = 0
    max_cores_per_user: _Most = 0
    nodes: Annotated[str, BeforeValidator(hosts_like("Nodes: node[01-16],node20", none=True)),
                     kind("hosts, as node[01-16],node20", "node[01-16]")] = ""
    cores_per_node: _Most = 0
    max_walltime: _Time = 0.0
    default_walltime: _Time = 0.0


def _one_default(queues: dict[str, QueueKeys]) -> dict[str, QueueKeys]:
    default = [name for name, keys in queues.items() if keys.default]
    if len(default) > 1:
        raise PydanticCustomError(OURS, "{message}", {
            "message": f"{' and '.join(default)} are both the default",
            "hint": "jobs without queue= go to one queue; keep one Default: true"})
    return queues


QueueTable = Annotated[
    dict[Annotated[str, Field(pattern=_WORD), kind("a name of letters, digits, _ . -", _DEBUG)],
         Annotated[QueueKeys, kind("a group of keys", "{MaxRunning: 2}", empty={})]],
    AfterValidator(_one_default), kind("names with groups of keys", _DEBUG, empty={})]


def queues_of(table: Mapping[str, QueueKeys]) -> Queues:
    """Return the queues of a configuration."""
    return Queues.of({name: {**dict(keys), "nodes": tuple(expand(keys.nodes)) if keys.nodes else ()}
                      for name, keys in table.items()})
