"""The process that vrm runs on each other node, at the remote end of an ssh or srun. It starts programs there for the
relay (`relay.py`) and reports how they end, and it runs vrm's agent (`vrm.live.runner.agent`) for the manager. The
relay sends it as text (`boot.py`), so that no file of vrm is read on the node. The standard library only, Python 3.6
or newer.

The order for a program is the arguments of `starting.start_job`. The answer is a tuple: why the program could not be
started (or None), its status as in `wait`, its CPU seconds (user, system) and its memory in bytes; for a script, its
steps are included. When the relay has ended nobody can receive these answers any more, so the programs are killed. The
order for an agent is the arguments of `agent.serve`: the agent is a process of its own, forked from this one, with
pipes for its input and output.
"""

import binascii
import marshal
import os
import select
import time

# The C modules themselves: `signal` and `socket` import enum.
import _signal as signal
import _socket as socket

if not __package__:
    import agent
    import serving
    import starting
    import wire
else:
    from vrm.live.runner import agent, serving, starting, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

SILENCE = 120.0
"""Seconds after which a runner without programs ends if it hears nothing."""

DOUBT = 8.0
"""Seconds of silence after which data that comes may be old: the relay asks every few seconds, and gives up a node
that does not answer. When that node can be reached again, the data that was on its way arrives."""

SETTLED = 1.0
"""Seconds after which all of that old data has come."""

AGENT_ENDS = 2.0
"""Seconds that an agent has to end after the end of its input; then it is killed."""

NODES_OWN = (b"HOSTNAME", b"SSH_CLIENT", b"SSH_CONNECTION", b"SSH_TTY", b"SLURMD_NODENAME",
             b"SLURM_NODEID", b"XDG_RUNTIME_DIR")
"""Variables that are not taken from the manager, since they describe a node or a login."""

RELAY = b"VRM_RELAY"
"""The variable that gives a program the name of the socket where it requests daemons on other nodes (see
`rsh_agent.py`)."""

IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are ignored: they are meant for the manager or its jobs."""

ENDING = (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
"""Signals that end a program which waits and has not begun."""


class RunningProgram:
    """A program that runs: the number of its order, the server of its steps, and the time when that is to start (0: it
    was started, or there is none)."""

    def __init__(self, number: int, env: "Dict[bytes, bytes]") -> None:
        self.number = number
        self.server = serving.ScriptServer(env)
        self.due = time.monotonic() + serving.AFTER if self.server.folder else 0.0


class RunningAgent:
    """The agent of one manager: the number of its order, its process, the pipes to and from it, the bytes not yet
    written to it, whether its input ends after them, and the time when it is killed (0: not set)."""

    def __init__(self, number: int, pid: int, pipes: "Tuple[int, int]") -> None:
        self.number = number
        self.pid = pid
        self.input, self.output = pipes
        self.unsent = bytearray()
        self.ending = False
        self.due = 0.0


class DaemonClient:
    """A program on this node that requests a daemon on another node: its connection, the number of its order, and the
    bytes of the order that have come (None: the order is complete and was passed to the relay)."""

    def __init__(self, connection: "socket.socket", number: int) -> None:
        self.connection = connection
        self.number = number
        self.unread = bytearray()  # type: Any


class Runner:
    """The main loop of a node: reads frames for the node `name` from `inbox`, and writes lines to `outbox`."""

    def __init__(self, name: bytes, inbox: int, outbox: int, wake: int) -> None:
        self.name = name
        self.inbox = inbox
        self.outbox = outbox
        self.wake = wake
        self.running: "Dict[int, Any]" = {}  # programs by their process numbers
        self.waiting: "Dict[int, Any]" = {}  # by number, orders that wait for a directory: time limit, directory, order
        self.printing: "Dict[int, bytes]" = {}  # pipes from daemons, and the error files of their jobs
        self.agents: "Dict[int, RunningAgent]" = {}  # by their output pipe
        self.base: "Any" = {}  # the environment of a program
        self.held: "List[Tuple[int, bytes]]" = []  # frames that may be old
        self.doubt = 0.0  # until when data may be old (0: it is not)
        self.own = {name: os.environb[name] for name in NODES_OWN if name in os.environb}
        self.poll, self.more = select.poll(), select.poll()
        self.listening: "Any" = None  # the socket for clients
        self.address = b""
        self.clients: "Dict[int, DaemonClient]" = {}
        self.numbers = 0

    def serve(self) -> None:
        """Run until the relay has ended, or until nothing was heard for `SILENCE` seconds and no program runs."""
        for poll in (self.poll, self.more):
            poll.register(self.inbox, select.POLLIN)
        self.poll.register(self.wake, select.POLLIN)
        unread = bytearray()
        heard = time.monotonic()
        while True:
            ready = dict(self.poll.poll(1000 * max(0.0, self.next_due() - time.monotonic())))
            self.serve_steps()
            self.look()
            self.serve_agents(ready)
            self.serve_clients(ready)
            self.serve_printing(ready)
            if self.wake in ready:
                os.read(self.wake, 4096)
                self.reap()
            if self.inbox in ready:
                data = self.read()
                if not data:
                    break
                heard = self.check_silence(heard)
                unread += data
                ours = [frame[1:] for frame in wire.take_frames(unread) if frame[0] in (self.name, wire.EVERY)]
                if any(self.take(number, content) for number, content in ours):
                    break
            elif not self.running and time.monotonic() >= heard + SILENCE:
                break
        for pid in self.running:
            self.kill(pid, signal.SIGKILL)

    def read(self) -> bytes:
        """Return the bytes that have come; b"" if the relay has ended, since the orders that it sent last must not
        begin any more."""
        data = b""
        while True:
            part = os.read(self.inbox, 1 << 16)
            data = data + part if part else b""
            if not part or not self.more.poll(0):
                return data

    def check_silence(self, heard: float) -> float:
        """Note that data has come, after other data at time `heard`; return the time now. After a silence of `DOUBT`
        seconds, ask the relay for an answer, and hold orders back until data comes that is at least `SETTLED` seconds
        later."""
        now = time.monotonic()
        if now > heard + DOUBT:
            self.doubt = now + SETTLED
            self.say(0)
        elif self.doubt and now >= self.doubt:
            self.doubt = 0.0
            held, self.held = self.held, []
            for number, content in held:
                self.carry_out(number, marshal.loads(content))
        return now

    def next_due(self) -> float:
        """Return the time at which there is something to do even if no data comes."""
        times: "List[float]" = [each.due for each in self.running.values() if each.due]
        times += [each.due for each in self.agents.values() if each.due]
        return min([*times, time.monotonic() + (starting.LOOK_EVERY if self.waiting else SILENCE)])

    def serve_steps(self) -> None:
        """Start the servers of scripts that are due."""
        for program in self.running.values():
            if program.due and time.monotonic() >= program.due:
                program.due = 0.0
                program.server.start()

    def look(self) -> None:
        """Start the orders whose directory now exists, or which have waited long enough."""
        for number, (due, folder, kind, order) in list(self.waiting.items()):
            if os.path.isdir(folder) or time.monotonic() >= due:
                del self.waiting[number]
                *before, _, make = order
                self.start(number, kind, (*before, 0.0, make))

    def take(self, number: int, content: bytes) -> bool:
        """Handle a frame; True if this process is to end."""
        if not number or number & wire.FAR:
            return self.handle_control(content) if not number else self.answer_client(number, content)
        if self.doubt:
            self.held.append((number, content))
        else:
            self.carry_out(number, marshal.loads(content))
        return False

    def carry_out(self, number: int, what: "Any") -> None:
        """Start a program or agent, send a signal to a program, or pass input on to an agent: `what` is an order, a
        number or bytes."""
        if isinstance(what, int):
            for pid, program in self.running.items():
                if program.number == number:
                    self.kill(pid, what)
            if number in self.waiting and what in ENDING:
                del self.waiting[number]
                self.say(number, (None, what, 0.0, 0.0, 0))
        elif isinstance(what, bytes):
            for each in self.agents.values():
                if each.number == number:
                    each.unsent += what
                    each.ending = not what
                    self.write_agent(each)
        elif what[0] == wire.AGENT:
            self.start_agent(number, what[1])
        else:
            self.start(number, *what)

    def handle_control(self, content: bytes) -> bool:
        """Handle a frame of number 0: set the environment that others are compared with, or answer the question
        whether this process is alive. True if the frame asks this process to end."""
        if content:
            self.base = marshal.loads(content)
            return self.base is None
        self.say(0)
        return False

    # Programs.

    def start(self, number: int, kind: bytes, order: "Tuple[Any, ...]") -> None:
        """Start a program or daemon, or make it wait for its directory. A program gets the socket for its requests for
        daemons on other nodes."""
        argv, env, *rest = order
        if isinstance(env, tuple):
            changes, gone = env
            env = {**{name: value for name, value in self.base.items() if name not in gone}, **changes}
        env = {**{name: value for name, value in env.items() if name not in NODES_OWN}, **self.own}
        if kind == wire.PROGRAM and RELAY in env:
            env[RELAY] = self.listen()
        printed = self.print_to(rest) if kind == wire.DAEMON else -1
        try:
            self.running[starting.start_job(argv, env, *rest)] = RunningProgram(number, env)
        except starting.FolderMissing as absent:
            self.waiting[number] = time.monotonic() + absent.seconds, absent.folder, kind, order
        except starting.StartError as error:
            self.say(number, (str(error), 0, 0.0, 0.0, 0))
        finally:
            if printed >= 0:
                os.close(printed)

    @staticmethod
    def kill(pid: int, number: int) -> None:
        """Send the signal `number` to a program with all of its process group; the program has not been waited for
        yet."""
        try:
            os.killpg(pid, number)
        except OSError:
            pass  # its group is gone, or another user's

    def reap(self) -> None:
        """Report the programs that have ended."""
        while True:
            try:
                pid, raw, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            program = self.running.pop(pid, None)
            if program is not None:
                self.say(program.number, (None, raw, *program.server.end(usage)))
                continue
            for each in self.running.values():
                each.server.ended(pid, usage)

    # Output of daemons (those of Open MPI 4.1 print a map of the ranks): no file is opened for one that prints nothing.

    def print_to(self, order: "List[Any]") -> int:
        """Replace the outputs in the arguments `order` by a pipe; return the end of it for writing."""
        source, printed = os.pipe()
        self.printing[source] = order[1]
        self.poll.register(source, select.POLLIN)
        order[1] = order[2] = printed
        return printed

    def serve_printing(self, ready: "Dict[int, int]") -> None:
        """Write what daemons have printed to the error files of their jobs."""
        for source in [each for each in self.printing if each in ready]:
            data = os.read(source, 1 << 20)  # all that a pipe holds
            if data:
                self.write_printed(self.printing[source], data)
            else:
                self.unregister(source)
                os.close(source)
                del self.printing[source]

    @staticmethod
    def write_printed(path: bytes, data: bytes) -> None:
        """Append `data` to the file; it is lost if the file cannot be opened."""
        try:
            errors = starting.open_output(path, True)
        except OSError:
            return
        starting.put(errors, data)
        os.close(errors)

    # Programs that request daemons on other nodes.

    def listen(self) -> bytes:
        """Return the name of the socket where programs of this node request daemons; create it at the first call."""
        if self.listening is None:
            self.address = b"vrm-" + binascii.hexlify(os.urandom(16))
            self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.listening.bind(b"\0" + self.address)
            self.listening.listen(4096)
            self.listening.setblocking(False)
            self.poll.register(self.listening.fileno(), select.POLLIN)
        return self.address

    def serve_clients(self, ready: "Dict[int, int]") -> None:
        """Read requests of clients, and their ends."""
        if self.listening is not None and self.listening.fileno() in ready:
            self.take_client()
        for descriptor in [each for each in self.clients if each in ready]:
            self.read_client(descriptor, self.clients[descriptor])

    def take_client(self) -> None:
        """Accept a client that has connected."""
        try:
            descriptor, _ = self.listening._accept()
        except OSError:
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, descriptor)
        if not wire.own(connection):
            connection.close()
            return
        connection.setblocking(False)
        self.numbers += 1
        self.clients[descriptor] = DaemonClient(connection, self.numbers | wire.FAR)
        self.poll.register(descriptor, select.POLLIN)

    def read_client(self, descriptor: int, client: DaemonClient) -> None:
        """Read a part of an order, or the end of a client."""
        try:
            data = client.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if client.unread is None and data:
            return  # its order is complete
        if data:
            client.unread += data
            end = 4 + int.from_bytes(client.unread[:4], "little")
            if len(client.unread) < max(5, end):
                return
            if client.unread[4:5] == wire.DAEMON:
                self.send_content(client.number, bytes(client.unread[4:end]))
                client.unread = None
                return
        elif client.unread is None:
            self.send_content(client.number, b"")
        self.end_client(descriptor)

    def answer_client(self, number: int, content: bytes) -> bool:
        """Send a client how its daemon has ended (b"": it was lost). Always False: this process goes on."""
        for descriptor, client in list(self.clients.items()):
            if client.number == number:
                try:
                    client.connection.sendall(content)
                except OSError:
                    pass  # it has been killed
                self.end_client(descriptor)
        return False

    def end_client(self, descriptor: int) -> None:
        """Forget a client and close its connection."""
        self.unregister(descriptor)
        self.clients.pop(descriptor).connection.close()

    # The agent.

    def start_agent(self, number: int, order: "Tuple[Any, ...]") -> None:
        """Fork an agent."""
        theirs, ours = os.pipe(), os.pipe()
        pid = starting.fork_into(serve_agent, theirs[0], ours[1], order)
        os.close(theirs[0])
        os.close(ours[1])
        os.set_blocking(theirs[1], False)
        self.agents[ours[0]] = RunningAgent(number, pid, (theirs[1], ours[0]))
        self.poll.register(ours[0], select.POLLIN)

    def serve_agents(self, ready: "Dict[int, int]") -> None:
        """Pass on what agents print, write more of their input, and kill an agent that does not end in time."""
        for each in list(self.agents.values()):
            if each.input in ready:
                self.write_agent(each)
            if each.due and time.monotonic() >= each.due:
                each.due = 0.0
                os.kill(each.pid, signal.SIGKILL)
            if each.output in ready:
                data = os.read(each.output, 1 << 16)
                self.say(each.number, data or (None, 0, 0.0, 0.0, 0))
                if not data:
                    self.end_agent(each)

    def write_agent(self, agent: RunningAgent) -> None:
        """Write as much as an agent can take; close its input after the last of it."""
        if agent.input < 0:
            return
        try:
            while agent.unsent:
                del agent.unsent[:os.write(agent.input, agent.unsent)]
        except BlockingIOError:
            self.poll.register(agent.input, select.POLLOUT)
            return
        except OSError:
            agent.unsent.clear()  # it has ended
            agent.ending = True
        self.unregister(agent.input)
        if agent.ending:
            os.close(agent.input)
            agent.input, agent.due = -1, time.monotonic() + AGENT_ENDS

    def end_agent(self, agent: RunningAgent) -> None:
        """Forget an agent that has ended and close its pipes."""
        del self.agents[agent.output]
        for descriptor in (agent.input, agent.output):
            if descriptor >= 0:
                self.unregister(descriptor)
                os.close(descriptor)

    def unregister(self, descriptor: int) -> None:
        """Stop polling a file, if it is polled."""
        try:
            self.poll.unregister(descriptor)
        except KeyError:
            pass

    def say(self, number: int, answer: "Any" = ()) -> None:
        """Send an answer to the relay."""
        self.send_content(number, marshal.dumps(answer, wire.PORTABLE) if answer else b"")

    def send_content(self, number: int, content: bytes) -> None:
        """Send encoded content to the relay."""
        data = wire.lines(self.name, number, content)
        while data:
            data = data[os.write(self.outbox, data):]


def serve_agent(given: int, said: int, order: "Tuple[Any, ...]") -> None:
    """Be the agent in a forked child; the pipes `given` and `said` become its input and output."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor, target in ((given, 0), (said, 1), (said, 2)):
            os.dup2(descriptor, target)
        os.closerange(3, 1 << 16)
        agent.serve(*order)
    except Exception as error:
        starting.put(2, "{}\n".format(error).encode())


def main(name: str) -> None:
    """Run the runner of the node `name` on standard input and output, which its programs do not inherit."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    inbox, outbox = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    wake, woken = os.pipe()
    for end in (wake, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken)
    runner = Runner(os.fsencode(name), inbox, outbox, wake)
    try:
        runner.say(0)
        runner.serve()
    except BrokenPipeError:
        pass  # the relay has gone

