"""`sinfo`: shows nodes and partitions."""

from __future__ import annotations

from dataclasses import dataclass
from collections.abc import Callable, Mapping, Sequence

from vrm.ext.slurm.forms import json_output, formats, times, state_names
from vrm.ext.slurm.calls.answers import Answer, Call
from vrm.ext.slurm.calls.handler import RequestHandler
from vrm.ext.slurm.forms.formats import Value
from vrm.ext.slurm.calls.jobs import NodeView
from vrm.ext.slurm.forms.options import Options

OPTIONS = Options("sinfo",
    "d dead n, h noheader n, . json m, l long n, n nodes v, N Node n, o format v, O Format v, p partition v, "
    "r responding n, R list-reasons n, s summarize n, t states v, T reservation n, "
    "a all n -, e exact n -, F future n -, . federation n -, . hide n -, . local n -, M clusters v -, "
    ". noconvert n -, S sort v -, v verbose n -, "
    "i iterate v !, . yaml m !")

DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
SUMMARY = "%9P %.5a %.10l %.16F %N"
LONG = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
NODES = "%10N %.6D %.9P %6t"
NODES_LONG = "%10N %.6D %.9P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E"


@dataclass(frozen=True)
class SinfoRow:
    """Nodes of one partition that have equal values in all columns."""

    partition: str
    nodes: tuple[NodeView, ...]


def sinfo(call: Call, handler: RequestHandler) -> Answer:
    """Return the table of nodes."""
    given, rest = OPTIONS.parse(call.arguments)
    if rest:
        raise OPTIONS.error(f"unrecognized argument {rest[0]}")
    heading = "noheader" not in given
    if "list-reasons" in given:
        return Answer("REASON               USER      TIMESTAMP           NODELIST\n" * heading)
    if "reservation" in given:
        return Answer("No reservations in the system\n")
    letters, names = _columns(handler)
    by_node = "Node" in given
    default = (SUMMARY if "summarize" in given else NODES_LONG if by_node and "long" in given else
               NODES if by_node else LONG if "long" in given else DEFAULT)
    table = formats.names(given["Format"], names) if "Format" in given else formats.letters(
        (given.get("format") or call.env.get("SINFO_FORMAT") or default).replace("#", ""), letters)
    nodes, partitions = _chosen(given, handler)
    rows = []
    for partition in partitions:
        here = state_names.members(partition, nodes, handler.site)
        if by_node:
            rows += [SinfoRow(partition, (node,)) for node in here]
            continue
        alike: dict[tuple[object, ...], list[NodeView]] = {}
        for node in here:
            row = SinfoRow(partition, (node,))
            key: tuple[object, ...] = (
                (state_names.node_state(node), node.sockets, node.memory, node.gpus,
                 node.features) if "json" in given else
                tuple(column.value(row) for column in table.columns if column.value not in _OF_MANY))
            alike.setdefault(key, []).append(node)
        rows += [SinfoRow(partition, tuple(each)) for each in alike.values()]
    if "json" in given:
        return Answer(json_output.document(call, handler, "sinfo", (
            json_output.nodes_of(row.partition, row.nodes, handler) for row in rows)))
    return Answer(table.lines(rows, heading), table.complaints("sinfo"))


def _chosen(given: Mapping[str, str], handler: RequestHandler) -> tuple[list[NodeView], list[str]]:
    """Return the requested nodes and partitions."""
    from vrm.model.forms.hosts import expand
    nodes, partitions = handler.nodes(), state_names.partitions(handler.site)
    if "nodes" in given and given["nodes"] != "all":
        wanted = set(OPTIONS.checked("Invalid node name: {}", expand, given["nodes"]))
        nodes = [node for node in nodes if node.name in wanted]
    if "partition" in given:
        partitions = [name for name in partitions if name in given["partition"].split(",")]
    if "dead" in given or "responding" in given:
        nodes = [node for node in nodes if node.up == ("responding" in given)]
    if "states" in given and given["states"] != "all":
        asked = [state.strip().lower() for state in given["states"].split(",")]
        nodes = [node for node in nodes if any(
            each and state_names.node_state(node).lower().startswith(each.rstrip("*")) for each in asked)]
    return nodes, partitions


def _size(nodes: Sequence[int]) -> str:
    least, most = min(nodes, default=0), max(nodes, default=0)
    return str(least) if least == most else f"{least}+"


def _count(row: SinfoRow) -> str:
    return str(len(row.nodes))


def _names(row: SinfoRow) -> str:
    return state_names.node_list([node.name for node in row.nodes])


def _cpus(row: SinfoRow) -> str:
    down = sum(node.cores for node in row.nodes if not node.up)
    taken = sum(node.allocated for node in row.nodes if node.up)
    total = sum(node.cores for node in row.nodes)
    return f"{taken}/{total - taken - down}/{down}/{total}"


def _shape(row: SinfoRow) -> str:
    node = row.nodes[0]
    return f"{len(node.sockets)}:{node.real_cores}:{node.threads}"


def _by_state(row: SinfoRow) -> str:
    states = [state_names.node_state(node) for node in row.nodes]
    down, idle = states.count("DOWN"), states.count("IDLE")
    return f"{len(states) - down - idle}/{idle}/{down}/{len(states)}"


def _some_by_state(row: SinfoRow) -> str:
    return "/".join(_by_state(row).split("/")[:2])


def _hosts(row: SinfoRow) -> str:
    """Return the host name. Rows with this column have one node each."""
    return _names(row)


_OF_MANY = (_count, _names, _cpus, _by_state, _some_by_state)
"""Column functions that count over all nodes of a row."""


def _columns(handler: RequestHandler) -> tuple[formats.Known, formats.Known]:
    """Return the columns by the letters and by the names of formats."""
    site = handler.site
    first = state_names.default_partition(site)

    def each(read: Callable[[NodeView], int]) -> Value:
        return lambda row: _size([read(node) for node in row.nodes])

    def limit(row: SinfoRow) -> str:
        found = state_names.longest(row.partition, site, handler.now)
        return times.used(found) if found < float("inf") else "infinite"

    def gres(row: SinfoRow) -> str:
        count = max((node.gpus for node in row.nodes), default=0) // 1000
        return f"gpu:{count}" if count else "(null)"

    def state(row: SinfoRow) -> str:
        return state_names.node_state(row.nodes[0])

    def features(row: SinfoRow) -> str:
        return ",".join(row.nodes[0].features) or "(null)"

    rows: Sequence[tuple[str, str, str, Value]] = [
        ("P", "partition", "PARTITION", lambda row: row.partition + "*" * (row.partition == first)),
        ("R", "partitionname", "PARTITION", lambda row: row.partition),
        ("a", "available", "AVAIL", lambda row: "up"),
        ("l", "time", "TIMELIMIT", limit),
        ("L", "defaulttime", "DEFAULTTIME", lambda row: times.used(state_names.default_time(row.partition, site))),
        ("D", "nodes", "NODES", _count), ("N", "nodelist", "NODELIST", _names), ("n", "nodehost", "HOSTNAMES", _hosts),
        ("o", "nodeaddr", "NODE_ADDR", _hosts),
        ("t", "statecompact", "STATE", lambda row: state_names.SHORT_NODE[state(row)]),
        ("T", "statelong", "STATE", lambda row: state(row).lower()),
        ("c", "cpus", "CPUS", each(lambda node: node.cores)), ("C", "cpusstate", "CPUS(A/I/O/T)", _cpus),
        ("m", "memory", "MEMORY", each(lambda node: node.memory >> 20)),
        ("e", "freemem", "FREE_MEM", each(lambda node: node.memory - node.memory_taken >> 20)),
        ("d", "disk", "TMP_DISK", lambda row: "0"), ("G", "gres", "GRES", gres),
        ("f", "features", "AVAIL_FEATURES", features),
        ("b", "features_act", "ACTIVE_FEATURES", features),
        ("g", "groups", "GROUPS", lambda row: "all"), ("h", "oversubscribe", "OVERSUBS", lambda row: "YES:4"),
        ("r", "root", "ROOT", lambda row: "no"), ("s", "size", "JOB_SIZE", lambda row: "1-infinite"),
        ("S", "allocnodes", "ALLOCNODES", lambda row: "all"), ("p", "prioritytier", "PRIO_TIER", lambda row: "1"),
        ("O", "cpusload", "CPU_LOAD", lambda row: "N/A"), ("E", "reason", "REASON", lambda row: "none"),
        ("H", "timestamp", "TIMESTAMP", lambda row: "Unknown"), ("u", "user", "USER", lambda row: "Unknown"),
        ("B", "maxcpuspernode", "MAX_CPUS_PER_NODE", lambda row: "UNLIMITED"),
        ("X", "sockets", "SOCKETS", each(lambda node: len(node.sockets))),
        ("Y", "cores", "CORES", each(lambda node: node.real_cores)),
        ("Z", "threads", "THREADS", each(lambda node: node.threads)),
        ("z", "socketcorethread", "S:C:T", _shape),
        ("F", "nodeaiot", "NODES(A/I/O/T)", _by_state), ("A", "nodeai", "NODES(A/I)", _some_by_state),
        ("w", "weight", "WEIGHT", lambda row: "1"), ("v", "version", "VERSION",
                                                     lambda row: state_names.VERSION.split()[1]),
        ("V", "cluster", "CLUSTER", lambda row: "vrm"), ("I", "prioritytierjob", "PRIO_JOB_FACTOR", lambda row: "1"),
        ("", "allocmem", "ALLOCMEM", each(lambda node: node.memory_taken >> 20)),
        ("", "gresused", "GRES_USED", lambda row: f"gpu:{sum(node.gpus_taken for node in row.nodes) // 1000}"),
        ("", "port", "PORT", lambda row: "0"), ("", "preemptmode", "PREEMPT_MODE", lambda row: "OFF"),
        ("", "priorityjobfactor", "PRIO_JOB_FACTOR", lambda row: "1"), ("", "userlong", "USER", lambda row: "Unknown"),
        ("", "statecomplete", "STATECOMPLETE", lambda row: state(row).lower()),
        ("", "extra", "EXTRA", lambda row: ""), ("", "comment", "COMMENT", lambda row: ""),
        ("", "state", "STATE", lambda row: state_names.SHORT_NODE[state(row)])]
    return formats.index_columns(rows)
