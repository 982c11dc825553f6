"""The options of `srun`, `sbatch` and `salloc`: the table of options, the reader, and what the options of `srun`
request for a step. Each step of each job loads this module, so it uses no modules that take long to load."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VALUE, NONE, MAYBE = "v", "n", "m"
"""What follows an option: a value, nothing, or an optional value in the same word (`--wait=3`)."""

IGNORED, NOT_HERE = "-", "!"
"""How an option is handled: ignored, because it does not change the result; or refused."""

_ALL = "sbatch srun salloc"

TABLE = (
    (_ALL, "", "", "c cpus-per-task v, D chdir v, e error v, x exclude v, . export v, G gpus v, . gpus-per-node v, "
     ". gpus-per-task v, . gres v, h help n, i input v, J job-name v, N nodes v, w nodelist v, n ntasks v, "
     ". ntasks-per-node v, . tasks-per-node v ntasks-per-node, . open-mode v, o output v, Q quiet n, t time v, "
     ". usage n help, V version n"),
    (_ALL, "", "-", "A account v, C constraint v, . comment v, . deadline v, . exclusive m, . kill-on-invalid-dep v, "
     "L licenses v, . mem v, . mem-per-cpu v, . mem-per-gpu v, . nice m, . no-requeue n requeue=no, p partition v, "
     ". priority v, . requeue n requeue=yes, . reservation v"),
    (_ALL, "", "!", "a array v, b begin v, . cpus-per-gpu v, d dependency v, H hold n, F nodefile v, . signal v"),
    (_ALL, "-", "", "m distribution v"),
    (_ALL, "", "-", ". hint v, . threads-per-core v"),
    (_ALL, "-", "-", ". acctg-freq v, . cluster-constraint v, M clusters v, . contiguous n, S core-spec v, "
     ". cores-per-socket v, . cpu-freq v, . delay-boot v, . extra v, . get-user-env m, . gid v, . gpu-bind v, "
     ". gpu-freq v, . gres-flags v, . mail-type v, . mail-user v, . mcs-label v, . mem-bind v, . mincpus v, "
     ". network v, k no-kill m, . ntasks-per-core v, . ntasks-per-socket v, s oversubscribe n, . power v, . prefer v, "
     ". profile v, . propagate m, q qos v, . sockets-per-node v, . spread-job n, . switches v, . thread-spec v, "
     ". time-min v, . tmp v, . tres-bind v, . uid v, . use-min-nodes n, v verbose n, "
     ". wait-all-nodes v, . wckey v"),
    (_ALL, "!", "", "O overcommit n, . tres-per-task v"),
    (_ALL, "!", "-", "B extra-node-info v, . export-file v"),
    (_ALL, "!", "!", ". batch v, . bb v, . bbf v, . container v, . gpus-per-socket v, . ntasks-per-gpu v, . reboot n, "
     ". x11 m"),
    ("sbatch", "", "", ". parsable n, . test-only n, W wait n, . wrap v"),
    ("sbatch", "-", "", ". ignore-pbs n"),
    ("srun", "", "", ". container-image v, . container-mounts v, . container-workdir v"),
    ("srun", "", "", ". cpu-bind v, . cpu_bind v cpu-bind, . exact n, . het-group v, . jobid v, K kill-on-bad-exit m, "
     "l label n, . mpi v, . multi-prog n, . overlap n, . pack-group v, . pty m, u unbuffered n"),
    ("srun", "-", "-", ". compress m, . debugger-test v, X disable-status n, . epilog v, . interactive m, "
     ". max-exit-timeout v, . mem_bind v, . msg-timeout v, . parallel n, E preserve-env n, . prolog v, "
     ". quit-on-interrupt n, . resv-ports m, "
     ". slurmd-debug v, . task-epilog v, . task-prolog v, T threads v, W wait v, . whole n"),
    ("srun", "!", "", "r relative v"),
    ("srun", "!", "!", ". bcast m, . container-env v, . container-name v, . container-save v, "
     ". mpi-combine v, Z no-allocate n, . send-libs m"),
    ("srun salloc", "-", "-", "I immediate m"),
    ("salloc", "", "", ". no-shell n"),
    ("salloc", "-", "", ". bell n, K kill-command m, . no-bell n"))
"""The options of these commands. Each row has the commands that know the options; how these are handled when a job
is submitted, and in a step of a job ("": followed; IGNORED; NOT_HERE); and the options in the format of
`OptionReader`. `vrm.ext.slurm.requests` defines what a value requests for a job. Ignored are options whose effect
vrm does not have, and in a step options of the whole job."""


def known(command: str, in_step: bool = False) -> str:
    """Return the options of a command in the format of `OptionReader`."""
    return ",".join(f"{option} {step if in_step else job}" for commands, job, step, options in TABLE
                    if command in commands for option in options.split(","))


OF_JOBS = tuple(option.split()[1] for _, job, step, options in TABLE if (job, step) == ("", NOT_HERE)
                for option in options.split(","))
"""Long names of the options that jobs follow and steps refuse."""


class CommandOption:
    """An option: its letter and long name ("": none), what follows it, and the key of its value (or IGNORED or
    NOT_HERE)."""

    __slots__ = ("letter", "name", "takes", "key")

    def __init__(self, letter: str, name: str, takes: str, *key: str) -> None:
        self.letter, self.name, self.takes, self.key = letter.strip("."), name, takes, (name, *key)[-1]

    @property
    def shown(self) -> str:
        """The option as users write it."""
        return f"--{self.name}" if self.name else f"-{self.letter}"


class OptionReader:
    """Reads the options of a command: `-n4`, `-n 4`, `--ntasks=4`, `--ntasks 4`, unique prefixes of long names,
    several letters in one word.

    Each line of the text, or each part between commas, is an option: its letter (`.`: none), its long name, what
    follows it (VALUE, NONE, MAYBE), and its key (IGNORED, NOT_HERE; default: the long name). The key may be followed
    by a fixed value, as in `requeue=no`."""

    says = {"name": "unrecognized option '--{name}'", "letter": "invalid option -- '{name}'",
            "near": "option '--{name}' is ambiguous; possibilities: {near}",
            "needs": "option '{name}' requires an argument", "takes": "option '{name}' doesn't allow an argument",
            NOT_HERE: "vrm does not do {name} in a step; leave it out"}
    """Error messages."""

    def __init__(self, command: str, text: str) -> None:
        self.command = command
        self.names = {words[1]: CommandOption(*words)
                      for words in map(str.split, text.replace(",", "\n").split("\n")) if words}
        self.all = list(self.names.values())
        self.letters = {option.letter: option for option in self.all if option.letter}

    def error(self, why: str) -> Exception:
        """Return the error in this command's format."""
        return UsageError(why)

    def _wrong(self, what: str, name: str, near: str = "") -> Exception:
        return self.error(self.says[what].format(name=name, near=near, command=self.command))

    def parse(self, words: Sequence[str], mixed: bool = True) -> tuple[dict[str, str], list[str]]:
        """Return the values by key, where the last occurrence of an option counts, and the other words. `mixed`:
        options may follow other words; otherwise the first other word ends the options. Raises the exception that
        `error` returns for an unknown option, a missing value, and an option that vrm refuses."""
        values: dict[str, str] = {}
        rest: list[str] = []
        left = list(reversed(words))
        while left:
            word = left.pop()
            if len(word) > 1 and word.startswith("-") and word != "--":
                self._word(word, left, values)
            elif mixed and word != "--":
                rest.append(word)
            else:
                rest += [word, *reversed(left)][word == "--":]
                break
        return values, rest

    def _word(self, word: str, left: list[str], values: dict[str, str]) -> None:
        """Read a word with options, and the value that follows it."""
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = self._named(name)
            if option.takes == NONE and equals:
                raise self._wrong("takes", option.shown)
            self._take(option, value if equals or option.takes != VALUE else self._next(option, left), values)
            return
        letters = word[1:]
        while letters:
            found = self.letters.get(letters[0])
            if found is None:
                raise self._wrong("letter", letters[0])
            letters = letters[1:]
            if found.takes == NONE:
                self._take(found, "", values)
                continue
            value = letters if letters or found.takes == MAYBE else self._next(found, left)
            self._take(found, value.removeprefix("="), values)
            return

    def _named(self, name: str) -> CommandOption:
        """Return the option whose name has this unique prefix."""
        near = [self.names[name]] if name in self.names else [
            option for each, option in self.names.items() if name and each.startswith(name)]
        if len(near) != 1:
            raise self._wrong("near" if near else "name", name, ", ".join(option.shown for option in near))
        return near[0]

    def _next(self, option: CommandOption, left: list[str]) -> str:
        if not left:
            raise self._wrong("needs", option.shown)
        return left.pop()

    def _take(self, option: CommandOption, value: str, values: dict[str, str]) -> None:
        key, equals, meant = option.key.partition("=")
        if key == NOT_HERE:
            raise self._wrong(NOT_HERE, option.shown)
        if key != IGNORED:
            values.pop(key, None)  # the last one counts, also for the order
            values[key] = meant if equals else value


class UsageError(Exception):
    """The command line requests something impossible; the text is for standard error."""


_VARIABLES = {"SLURM_LABELIO": "label", "SLURM_OVERLAP": "overlap", "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
              "SLURM_MPI_TYPE": "mpi", "SRUN_CPUS_PER_TASK": "cpus-per-task", "SRUN_EXPORT_ENV": "export",
              "SLURM_STDOUTMODE": "output", "SLURM_STDERRMODE": "error", "SLURM_STDINMODE": "input",
              "SLURM_WORKING_DIR": "chdir", "SLURM_DISTRIBUTION": "distribution", "SLURM_OVERCOMMIT": "overcommit"}
"""Environment variables that set options of srun."""


class SrunOptions:
    """The options of a step: `words` are the program with its arguments; `given` are the values by the long names of
    the options ("" for an option without value). `others` are the options of the further parts of a heterogeneous
    step."""

    def __init__(self, given: dict[str, str], words: list[str], others: Sequence[SrunOptions] = ()) -> None:
        self.given, self.words, self.others = given, words, others

    def get(self, name: str, default: str = "") -> str:
        """Return the value of an option."""
        return self.given.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self.given

    def complete(self, env: Mapping[str, str]) -> None:
        """Add the values of environment variables for options that are not given."""
        for variable, name in _VARIABLES.items():
            value = env.get(variable)
            if value is not None and name not in self.given and not (value == "0" and SRUN.names[name].takes == NONE):
                self.given[name] = value

    def number(self, name: str, default: int) -> int:
        """Return the value of an option that must be a number above 0. Raises UsageError."""
        text = self.given.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
            raise UsageError(f'Invalid numeric value "{text}" for --{name}.')
        return int(text)

    def nodes(self) -> tuple[int, int] | None:
        """Return the least and the most number of nodes; None if they are not given. Raises UsageError."""
        text = self.given.get("nodes")
        if text is None:
            return None
        low, dash, high = text.partition("-")
        parts = [low, high] if dash else [low]
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            raise UsageError(f'invalid number of nodes (-N {text})')
        first, last = int(parts[0]), int(parts[-1])
        if last < first:
            raise UsageError(f'invalid number of nodes (-N {text}): the second is smaller')
        return first, last

    def seconds(self) -> float | None:
        """Return the time limit in seconds, given as minutes, `M:S`, `H:M:S`, `D-H`, `D-H:M` or `D-H:M:S`; None for
        no limit. Raises UsageError."""
        text = self.given.get("time")
        if text is None or text.lower() in ("infinite", "unlimited", "0", "-1"):
            return None
        from vrm.model.quantities import slurm_seconds
        try:
            return slurm_seconds(text)
        except ValueError:
            raise UsageError(f'Invalid --time specification "{text}"') from None


GPUS = ("gpus", "gpus-per-task", "gpus-per-node", "gres", "tres-per-task")
"""Options that request GPUs."""


def gpus_of(options: SrunOptions) -> dict[str, int]:
    """Return the number of requested GPUs for each of these options that is given. The kind of a GPU (`a100:2`) is
    ignored; it is that of the job. Raises UsageError for other resources."""
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
                    raise UsageError(f"steps share what the job has of {part.partition(':')[0]}; "
                                     f"leave out --{name}={text}")
                words = words or ["1"]
            number = words.pop()
            if len(words) > 1 or not number.isascii() or not number.isdigit() or len(number) > 6:
                raise UsageError(f'Invalid specification "{text}" for --{name}.')
            amount += int(number)
        found[name] = amount
    return found


SRUN = OptionReader("srun", known("srun", in_step=True))


def parse(arguments: Sequence[str]) -> SrunOptions:
    """Return the options of a step, or of its parts, which `:` separates. Options end at the first other word.
    Raises UsageError."""
    first, *others = [SrunOptions(*SRUN.parse(part, mixed=False)) for part in parts_of(arguments)]
    first.others = others
    return first


def parts_of(arguments: Sequence[str]) -> list[list[str]]:
    """Return the arguments of each part; `:` separates parts."""
    parts: list[list[str]] = [[]]
    for word in arguments:
        if word == ":":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


_OF_PARTS = frozenset(("ntasks", "nodes", "cpus-per-task", "ntasks-per-node", "nodelist", "exclude", "relative",
                       "distribution", "overcommit", "het-group", "pack-group", "mpi", "exact", "overlap", *GPUS))
"""Options that each part of a heterogeneous step has for itself."""


def refuse(options: SrunOptions) -> None:
    """Raise UsageError for options that would change the result but are not implemented in steps."""
    given = options.given
    for other in options.others:
        strange = [name for name in other.given if name not in _OF_PARTS]
        if strange:
            raise UsageError(f"--{strange[0]} is of the whole step: say it before the first `:`")
        if not other.words:
            raise UsageError("a part of the step names no program: there is one behind each `:`")
        refuse(other)
    kind = given.get("distribution", "block").partition(",")[0].split(":")[0].lower()
    if kind not in ("block", "*", "cyclic", ""):
        raise UsageError(f"vrm does not do --distribution={given['distribution']}; block and cyclic are known")
    words, _ = binding(given.get("cpu-bind", ""))
    if not _BINDINGS.issuperset(words):
        raise UsageError(f"vrm binds tasks to cores itself; leave out --cpu-bind={given['cpu-bind']}, or take "
                         "none, cores, sockets, map_cpu:LIST or mask_cpu:LIST")


_NARROW = frozenset(("cores", "core", "threads", "thread", "rank", "auto", "yes", "y"))
_WIDE = frozenset(("none", "no", "n", "sockets", "socket", "ldoms", "boards"))
_BINDINGS = _NARROW | _WIDE | {"q", "quiet", "v", "verbose", ""}


def binding(text: str) -> tuple[list[str], list[list[int]]]:
    """Return the words of a --cpu-bind value, and the CPUs that it lists for the tasks of each node (reused in turns
    for further tasks). Raises UsageError for an invalid list."""
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
            raise UsageError(f"--cpu-bind={text}: `{part}` is not a "
                             f"{'mask of CPUs as 0x3' if kind == 'mask_cpu' else 'CPU'}")
    return parts[:at], found


def wide(text: str) -> bool:
    """Return whether this --cpu-bind value allows a task to use all cores that its step has on the node."""
    return any(part in _WIDE for part in binding(text)[0])


def hosts(text: str) -> list[str]:
    """Return the names in a list such as `n[0-2,5],m7`. Raises UsageError for an invalid list."""
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
                raise UsageError(f"`{text}` is not a list of nodes as n[0-3],m7")
            names += [f"{stem}{number:0{len(low)}}{tail}" for number in range(int(low), int(high or low) + 1)]
    return [name for name in names if name]


def exported(text: str | None, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of tasks according to --export: ALL, NONE, names, and NAME=VALUE, with commas between
    them."""
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
    """Return a file name with its `%` letters replaced: j A J s t n N x u a, for numbers with a width as in `%4t`;
    `%%` is a `%`. In a name with a backslash nothing is replaced, and the backslashes are removed."""
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


def differs_by_task(text: str) -> bool:
    """Return whether such a file name differs between tasks or nodes."""
    return "\0" in pattern(text, dict.fromkeys("tnN", "\0"))
