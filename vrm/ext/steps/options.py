"""The options of `srun`, `sbatch` and `salloc`, how they are read, and what those of `srun` ask of a step. Modules
that take long to load are not used here, since each step of each job loads this one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VALUE, NONE, MAYBE = "v", "n", "m"
"""What follows an option: a value, nothing, or a value that is written with it (`--wait=3`)."""

IGNORED, NOT_HERE = "-", "!"
"""What is done with an option: nothing, since it changes nothing of the outcome; or it is refused."""

_ALL = "sbatch srun salloc"

TABLE = (
    (_ALL, "", "", "c cpus-per-task v, D chdir v, e error v, x exclude v, . export v, G gpus v, . gpus-per-node v, "
     ". gpus-per-task v, . gres v, h help n, i input v, J job-name v, N nodes v, w nodelist v, n ntasks v, "
     ". ntasks-per-node v, . open-mode v, o output v, Q quiet n, t time v, . usage n help, V version n"),
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
     ". max-exit-timeout v, . mem_bind v, . msg-timeout v, . parallel n, E preserve-env n, . prolog v, . resv-ports m, "
     ". slurmd-debug v, . task-epilog v, . task-prolog v, T threads v, W wait v, . whole n"),
    ("srun", "!", "", "r relative v"),
    ("srun", "!", "!", ". bcast m, . container-env v, . container-name v, . container-save v, "
     ". mpi-combine v, Z no-allocate n, . send-libs m"),
    ("srun salloc", "-", "-", "I immediate m"),
    ("salloc", "", "", ". no-shell n"),
    ("salloc", "-", "", ". bell n, K kill-command m, . no-bell n"))
"""The options of these commands: which of them know the options, what becomes of these where a job is made and in a
step of one ("": they are followed, IGNORED, NOT_HERE), and the options, each as `OptionReader` describes it. What a
value asks of a job is said in `vrm.ext.slurm.requests`; ignored are options whose effect vrm does not have, and in a
step those of the whole job."""


def known(command: str, in_step: bool = False) -> str:
    """The options that a command knows, for an `OptionReader`."""
    return ",".join(f"{option} {step if in_step else job}" for commands, job, step, options in TABLE
                    if command in commands for option in options.split(","))


class CommandOption:
    """An option: the letter and the long name ("": it has none), what follows, and the key under which
    its value is found, or IGNORED or NOT_HERE."""

    __slots__ = ("letter", "name", "takes", "key")

    def __init__(self, letter: str, name: str, takes: str, *key: str) -> None:
        self.letter, self.name, self.takes, self.key = letter.strip("."), name, takes, (name, *key)[-1]

    @property
    def shown(self) -> str:
        """As people write it."""
        return f"--{self.name}" if self.name else f"-{self.letter}"


class OptionReader:
    """The options of a command: `-n4`, `-n 4`, `--ntasks=4`, `--ntasks 4`, unique beginnings of long names, several
    short ones in a word.

    Each line of the text, or part between commas, is an option: its letter (`.`: none), its long name, what follows it
    (VALUE, NONE, MAYBE), and the key (IGNORED, NOT_HERE; left out: the long name), which may be followed by the value
    that it stands for, as `requeue=no`.
    """

    says = {"name": "unrecognized option '--{name}'", "letter": "invalid option -- '{name}'",
            "near": "option '--{name}' is ambiguous; possibilities: {near}",
            "needs": "option '{name}' requires an argument", "takes": "option '{name}' doesn't allow an argument",
            NOT_HERE: "vrm does not do {name} in a step; leave it out"}
    """What is wrong with options."""

    def __init__(self, command: str, text: str) -> None:
        self.command = command
        self.names = {words[1]: CommandOption(*words)
                      for words in map(str.split, text.replace(",", "\n").split("\n")) if words}
        self.all = list(self.names.values())
        self.letters = {option.letter: option for option in self.all if option.letter}

    def error(self, why: str) -> Exception:
        """What is wrong, as this command says it."""
        return Wrong(why)

    def _wrong(self, what: str, name: str, near: str = "") -> Exception:
        return self.error(self.says[what].format(name=name, near=near, command=self.command))

    def parse(self, words: Sequence[str], mixed: bool = True) -> tuple[dict[str, str], list[str]]:
        """The values by their keys, the last of each option, and the other words. `mixed`: options may
        come behind these; else the first of them ends the options. Raises what `error` gives for what is not an option,
        for one without its value, and for one that vrm cannot follow."""
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
        """Read a word with options, and the value behind it."""
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
        """The option whose name begins so."""
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


class Wrong(Exception):
    """The command line asks for what cannot be; the text is for standard error."""


_VARIABLES = {"SLURM_LABELIO": "label", "SLURM_OVERLAP": "overlap", "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
              "SLURM_MPI_TYPE": "mpi", "SRUN_CPUS_PER_TASK": "cpus-per-task", "SRUN_EXPORT_ENV": "export",
              "SLURM_STDOUTMODE": "output", "SLURM_STDERRMODE": "error", "SLURM_STDINMODE": "input",
              "SLURM_WORKING_DIR": "chdir", "SLURM_DISTRIBUTION": "distribution", "SLURM_OVERCOMMIT": "overcommit"}
"""Variables that say the same as options of srun."""


class SrunOptions:
    """What was asked for: `words` the program with its arguments, the rest by the options' long names
    (texts; "" for one without a value). `others` are those of the further parts of a heterogeneous step."""

    def __init__(self, given: dict[str, str], words: list[str], others: Sequence[SrunOptions] = ()) -> None:
        self.given, self.words, self.others = given, words, others

    def get(self, name: str, default: str = "") -> str:
        """The value of an option."""
        return self.given.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self.given

    def complete(self, env: Mapping[str, str]) -> None:
        """Add what variables say instead of options."""
        for variable, name in _VARIABLES.items():
            value = env.get(variable)
            if value is not None and name not in self.given and not (value == "0" and SRUN.names[name].takes == NONE):
                self.given[name] = value

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


SRUN = OptionReader("srun", known("srun", in_step=True))


def parse(arguments: Sequence[str]) -> SrunOptions:
    """What these arguments ask of a step, or with `:` between them of its parts. Options end at the first word that is
    none. Raises Wrong."""
    first, *others = [SrunOptions(*SRUN.parse(part, mixed=False)) for part in parts_of(arguments)]
    first.others = others
    return first


def parts_of(arguments: Sequence[str]) -> list[list[str]]:
    """The arguments of each part: between them stands `:`."""
    parts: list[list[str]] = [[]]
    for word in arguments:
        if word == ":":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


_OF_PARTS = frozenset(("ntasks", "nodes", "cpus-per-task", "ntasks-per-node", "nodelist", "exclude", "relative",
                       "distribution", "overcommit", "het-group", "pack-group", "mpi", "exact", "overlap", *GPUS))
"""The options that each part of a heterogeneous step has of its own."""


def refuse(options: SrunOptions) -> None:
    """Raise Wrong for what was asked and would change the outcome, but is not done here."""
    given = options.given
    for other in options.others:
        strange = [name for name in other.given if name not in _OF_PARTS]
        if strange:
            raise Wrong(f"--{strange[0]} is of the whole step: say it before the first `:`")
        if not other.words:
            raise Wrong("a part of the step names no program: there is one behind each `:`")
        refuse(other)
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
    return "\0" in pattern(text, dict.fromkeys("tnN", "\0"))
