"""The options of `srun`: those that say how a step runs, those that are refused, and those without meaning
here, which are accepted in silence."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SHORT = {"n": "ntasks", "N": "nodes", "c": "cpus-per-task", "D": "chdir", "o": "output", "e": "error",
         "i": "input", "l": "label", "u": "unbuffered", "t": "time", "K": "kill-on-bad-exit",
         "w": "nodelist", "J": "job-name", "Q": "quiet", "v": "verbose", "m": "distribution", "V": "version",
         "W": "wait", "h": "help", "p": "partition", "A": "account", "q": "qos", "C": "constraint",
         "x": "exclude", "s": "oversubscribe", "k": "no-kill", "H": "hold", "E": "preserve-env",
         "X": "disable-status", "I": "immediate", "S": "core-spec", "T": "threads", "O": "overcommit",
         "B": "extra-node-info", "L": "licenses", "d": "dependency", "G": "gpus", "M": "clusters",
         "b": "begin", "r": "relative", "a": "array", "Z": "no-allocate"}

FLAGS = frozenset((
    "exact", "overlap", "label", "unbuffered", "quiet", "verbose", "version", "help", "pty", "multi-prog",
    "oversubscribe", "no-kill", "hold", "preserve-env", "disable-status", "overcommit", "no-allocate",
    "contiguous", "spread-job", "use-min-nodes", "whole", "reboot", "parallel", "usage"))
"""Options without a value."""

MAYBE = frozenset(("exclusive", "kill-on-bad-exit", "immediate", "nice", "propagate", "bcast", "compress",
                   "resv-ports", "send-libs", "interactive"))
"""Options whose value, if there is one, is behind `=` (or directly behind the letter)."""

HARMLESS = frozenset((
    "partition", "account", "qos", "mem", "mem-per-cpu", "mem-bind", "comment", "hint", "oversubscribe",
    "no-kill", "preserve-env", "disable-status", "threads", "clusters", "wckey", "reservation", "mail-type",
    "mail-user", "nice", "propagate", "quiet", "verbose", "wait", "whole", "exact", "exclusive", "contiguous",
    "threads-per-core", "ntasks-per-core", "ntasks-per-socket", "cores-per-socket", "sockets-per-node",
    "priority", "open-mode", "slurmd-debug", "profile", "acctg-freq", "cpu-freq", "tmp", "constraint",
    "licenses", "unbuffered", "thread-spec", "core-spec", "extra-node-info", "use-min-nodes", "spread-job",
    "task-prolog", "task-epilog", "prolog", "epilog", "deadline", "immediate", "mincpus", "resv-ports",
    "delay-boot", "interactive", "parallel", "max-exit-timeout", "msg-timeout", "gid", "uid", "compress",
    "get-user-env", "power", "switches", "export-file", "mcs-label", "debugger-test"))
"""Options of the whole job, and of things that vrm does not do in a step: they do not change what the
programs of a step compute or where."""

USED = frozenset((
    "ntasks", "nodes", "cpus-per-task", "ntasks-per-node", "overlap", "chdir", "output", "error", "input",
    "label", "time", "export", "cpu-bind", "mpi", "kill-on-bad-exit", "nodelist", "job-name", "version",
    "help", "distribution", "exclude", "relative", "jobid", "gpus",
    "gres", "gpus-per-task", "gpus-per-node", "pty", "tres-per-task", "overcommit", "multi-prog"))

REFUSED = frozenset((
    "signal", "container", "het-group", "pack-group", "mpi-combine", "container-image", "container-mounts",
    "container-workdir", "container-name", "container-save", "container-env"))
"""Options that would change the outcome, beyond those above that nothing follows."""

KNOWN = FLAGS | MAYBE | HARMLESS | USED | REFUSED | frozenset(SHORT.values())

OLD = {"cpu_bind": "cpu-bind", "mem_bind": "mem-bind"}
"""Spellings of earlier versions of Slurm."""

NO_HETEROGENEOUS = "vrm has no heterogeneous jobs and steps (`:`, --het-group): start each part with an srun of its own"


class Wrong(Exception):
    """The command line asks for what cannot be; the text is for standard error."""


class SrunOptions:
    """What was asked for: `words` the program with its arguments, the rest by the options' long names
    (texts; "" for one without a value)."""

    def __init__(self, given: dict[str, str], words: list[str]) -> None:
        self.given, self.words = given, words

    def get(self, name: str, default: str = "") -> str:
        """The value of an option."""
        return self.given.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self.given

    def number(self, name: str, default: int) -> int:
        """The value of an option that is a number above 0."""
        text = self.given.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
            raise Wrong(f'Invalid numeric value "{text}" for --{name}.')
        return int(text)

    def nodes(self) -> tuple[int, int] | None:
        """The least and the most nodes, if they were given."""
        text = self.given.get("nodes")
        if text is None:
            return None
        low, dash, high = text.partition("-")
        parts = [low, high] if dash else [low]
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            raise Wrong(f'invalid number of nodes (-N {text})')
        first, last = int(parts[0]), int(parts[-1])
        if last < first:
            raise Wrong(f'invalid number of nodes (-N {text}): the second is smaller')
        return first, last

    def seconds(self) -> float | None:
        """The time limit: minutes, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`; None for none."""
        text = self.given.get("time")
        if text is None or text.lower() in ("infinite", "unlimited", "0", "-1"):
            return None
        from vrm.model.quantities import of_slurm
        try:
            return of_slurm(text)
        except ValueError:
            raise Wrong(f'Invalid --time specification "{text}"') from None


GPUS = ("gpus", "gpus-per-task", "gpus-per-node", "gres", "tres-per-task")
"""The options that ask for GPUs."""


def gpus_of(options: SrunOptions) -> dict[str, int]:
    """How many GPUs were asked for, by those of these options that were given. The kind of a GPU (`a100:2`) is
    that of the job. Wrong for other resources."""
    found = {}
    for name in GPUS:
        text = options.given.get(name)
        if text is None:
            continue
        parts = text.lower().replace("gres/", "").split(",")
        amount = 0
        for part in parts:
            words = part.replace("=", ":").split(":")
            if part in ("none", "0", ""):
                continue
            if name in ("gres", "tres-per-task"):
                if words.pop(0) != "gpu":
                    raise Wrong(f"steps share what the job has of {part.partition(':')[0]}; leave out --{name}={text}")
                words = words or ["1"]
            number = words.pop()
            if len(words) > 1 or not number.isascii() or not number.isdigit() or len(number) > 6:
                raise Wrong(f'Invalid specification "{text}" for --{name}.')
            amount += int(number)
        found[name] = amount
    return found


def parse(arguments: list[str]) -> SrunOptions:
    """What these arguments ask for. Options end at the first word that is none. Raises Wrong."""
    given: dict[str, str] = {}
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        at += 1
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _whole(OLD.get(name, name))
            if name in FLAGS:
                if equals:
                    raise Wrong(f"option '--{name}' doesn't allow an argument")
            elif not equals and name not in MAYBE:
                if at == len(arguments):
                    raise Wrong(f"option '--{name}' requires an argument")
                value = arguments[at]
                at += 1
            given[name] = value
            continue
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            found = SHORT.get(letter)
            if found is None:
                raise Wrong(f"invalid option -- '{letter}'")
            if found in FLAGS:
                given[found] = ""
            elif found in MAYBE:
                given[found], letters = letters.lstrip("="), ""
            else:
                if not letters:
                    if at == len(arguments):
                        raise Wrong(f"option requires an argument -- '{letter}'")
                    letters = arguments[at]
                    at += 1
                given[found], letters = letters, ""
    return SrunOptions(given, arguments[at:])


def _whole(name: str) -> str:
    """The long name that begins so; Wrong for one that is unknown or could be several."""
    if name in KNOWN:
        return name
    fits = sorted(known for known in KNOWN if name and known.startswith(name))
    if len(fits) != 1:
        raise Wrong(f"unrecognized option '--{name}'" if not fits else
                    f"option '--{name}' is ambiguous; possibilities: " + " ".join(f"'--{fit}'" for fit in fits))
    return fits[0]


def refuse(options: SrunOptions) -> None:
    """Raise Wrong for what was asked and would change the outcome, but is not done here."""
    given = options.given
    if ":" in options.words or "het-group" in given or "pack-group" in given:
        raise Wrong(NO_HETEROGENEOUS)
    for name in given:
        if name not in USED and name not in HARMLESS:
            raise Wrong(f"vrm does not do --{name} in a step; leave it out")
    kind = given.get("distribution", "block").partition(",")[0].split(":")[0].lower()
    if kind not in ("block", "*", "cyclic", ""):
        raise Wrong(f"vrm does not do --distribution={given['distribution']}; block and cyclic are known")
    words, _ = binding(given.get("cpu-bind", ""))
    if not _BINDINGS.issuperset(words):
        raise Wrong(f"vrm binds tasks to cores itself; leave out --cpu-bind={given['cpu-bind']}, or take "
                    "none, cores, sockets, map_cpu:LIST or mask_cpu:LIST")


_NARROW = frozenset(("cores", "core", "threads", "thread", "rank", "auto", "yes", "y"))
_WIDE = frozenset(("none", "no", "n", "sockets", "socket", "ldoms", "boards"))
_BINDINGS = _NARROW | _WIDE | {"q", "quiet", "v", "verbose", ""}


def binding(text: str) -> tuple[list[str], list[list[int]]]:
    """The words of a --cpu-bind, and the CPUs for the tasks of each node that it lists: they come again for more
    tasks. Wrong for what is not a list."""
    parts = text.lower().split(",")
    at = next((at for at, part in enumerate(parts) if part.startswith(("map_cpu:", "mask_cpu:"))), len(parts))
    if at == len(parts):
        return parts, []
    kind, _, parts[at] = parts[at].partition(":")
    found: list[list[int]] = []
    for part in parts[at:]:
        number, star, times = part.partition("*")
        try:
            value = int(number, 16 if kind == "mask_cpu" or number.startswith("0x") else 10)
            cpus = [cpu for cpu in range(value.bit_length()) if value >> cpu & 1] if kind == "mask_cpu" else [value]
            found += [cpus] * (int(times) if star else 1)
        except ValueError:
            cpus = []
        if not cpus or len(found) > 1 << 16:
            raise Wrong(f"--cpu-bind={text}: `{part}` is not a "
                        f"{'mask of CPUs as 0x3' if kind == 'mask_cpu' else 'CPU'}")
    return parts[:at], found


def wide(text: str) -> bool:
    """Whether by this --cpu-bind a task may use all cores that its step has on the node."""
    return any(part in _WIDE for part in binding(text)[0])


def hosts(text: str) -> list[str]:
    """The names in a list as `n[0-2,5],m7`; Wrong for what is none."""
    names, rest = [], text
    while rest:
        stem, bracket, behind = rest.partition("[")
        plain, comma, more = rest.partition(",")
        if not bracket or (comma and len(plain) < len(stem)):
            names.append(plain)
            rest = more
            continue
        inside, end, rest = behind.partition("]")
        tail, _, rest = rest.partition(",")
        for part in inside.split(","):
            low, dash, high = part.partition("-")
            if not end or not low.isdigit() or (dash and not high.isdigit()) or \
                    int(high or low) - int(low) > 100_000:
                raise Wrong(f"`{text}` is not a list of nodes as n[0-3],m7")
            names += [f"{stem}{number:0{len(low)}}{tail}" for number in range(int(low), int(high or low) + 1)]
    return [name for name in names if name]


def exported(text: str | None, env: Mapping[str, str]) -> dict[str, str]:
    """The environment of tasks by --export: ALL, NONE, names, and NAME=VALUE, with commas between them."""
    if text is None or text == "":
        return dict(env)
    parts = text.split(",")
    words = {part.upper() for part in parts}
    kept = dict(env) if "ALL" in words else {
        name: value for name, value in env.items() if name.startswith(("SLURM", "VRM_")) or name == "PATH"}
    for part in parts:
        name, equals, value = part.partition("=")
        if part.upper() in ("ALL", "NONE", "NIL"):
            continue
        if equals:
            kept[name] = value
        elif name in env:
            kept[name] = env[name]
    return kept


def pattern(text: str, values: Mapping[str, str]) -> str:
    """The name of a file with its `%` words filled in: j A J s t n N x u a, with a width for numbers as
    `%4t`; `%%` is a `%`. A name with a backslash is taken as it is."""
    if "\\" in text:
        return text.replace("\\", "")
    out, at = "", 0
    while at < len(text):
        if text[at] != "%":
            out, at = out + text[at], at + 1
            continue
        end = at + 1
        while end < len(text) and text[end].isdigit():
            end += 1
        letter = text[end:end + 1]
        if letter == "%":
            out += "%"
        elif letter in values:
            out += values[letter].rjust(min(10, int(text[at + 1:end] or 0)),
                                        "0" if values[letter].isdigit() else " ")
        else:
            out += text[at:end + 1]
        at = end + 1
    return out


def each_task(text: str) -> bool:
    """Whether such a name of a file is another for each task, or node."""
    at = text.find("%")
    while at >= 0 and "\\" not in text:
        at += 1
        while at < len(text) and text[at].isdigit():
            at += 1
        if text[at:at + 1] in ("t", "n", "N") and text[at:at + 1]:
            return True
        at = text.find("%", at + 1)
    return False
