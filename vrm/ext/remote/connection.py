"""An ssh connection to another machine, with ~/.ssh/config, jump hosts, known hosts, keys, and the server's
questions for passwords and one-time codes.

Fabric reads the configuration and makes the connections. Host keys and user authentication are handled here in the
way of OpenSSH, because Fabric alone accepts every host key and does not ask for codes."""

from __future__ import annotations

import base64
import getpass
import hashlib
import logging
import os
import socket
import sys
import termios
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from collections.abc import Callable, Iterator, Sequence

from vrm.system.errors import RunError
from vrm.system.printing.text import printable

try:
    from fabric import Config, Connection
    from fabric.auth import OpenSSHAuthStrategy
    from paramiko import (AuthenticationException, BadAuthenticationType, BadHostKeyException, ChannelException,
                          MissingHostKeyPolicy, PasswordRequiredException, PKey, ProxyCommandFailure,
                          SSHException as SSHException)
except ImportError as error:
    raise RunError(f"--on needs Fabric ({error}); install it next to vrm: pip install 'fabric>=3.2,<4'") from error

SECONDS = 20.0
"""Seconds that a server may take to answer, unless ConnectTimeout in ~/.ssh/config is set."""

ALIVE = 30
"""Seconds between keepalive messages on a silent connection."""

MAX_ATTEMPTS = 3
"""How often a password may be typed."""

THINKING = 600
"""Seconds within which a code must be typed; servers have limits of their own."""

MAX_METHODS = 8
"""Maximum number of authentication steps that a server may request one after the other."""

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # errors are reported once, in one line


class ConnectionFailed(RunError):
    """The connection failed; the text says why in one line, and what to do."""


def connect(host: str) -> Any:
    """Return an open Fabric connection to a host as ~/.ssh/config names it, or to `user@host`. Raises
    ConnectionFailed."""
    connection: Any = None
    try:
        config = Config()
        config.authentication.strategy_class = Authentication
        connection = Connection(host, config=config)
        for hop in hops(connection):
            hop.connect_timeout = hop.connect_timeout or int(SECONDS)
            known = known_hosts(hop.ssh_config)
            for path in known:
                if path.exists():
                    hop.client.load_system_host_keys(str(path))
            hop.client.set_missing_host_key_policy(
                HostKeyPolicy(hop.ssh_config.get("stricthostkeychecking", "ask"), known[0]))
        connection.open()
        connection.transport.set_keepalive(ALIVE)
        return connection
    except (OSError, SSHException, EOFError, ValueError) as error:
        if connection is not None:
            connection.close()
        raise ConnectionFailed(said(error, host, connection)) from error


def hops(connection: Any) -> Iterator[Any]:
    """Yield the connection, and those of the jump hosts on its way."""
    while isinstance(connection, Connection):
        yield connection
        connection = connection.gateway


def known_hosts(config: Any) -> list[Path]:
    """Return the files with the keys of known servers; new keys are added to the first."""
    named = config.get("userknownhostsfile", "~/.ssh/known_hosts").split()
    return [*(Path(name).expanduser() for name in named), Path("/etc/ssh/ssh_known_hosts")]


def said(error: BaseException, host: str, connection: Any) -> str:
    """Return the error in one line, with what to do."""
    host = printable(host)
    where = host if connection is None else f"{host} ({printable(connection.host)}, port {connection.port})"
    if isinstance(error, BadHostKeyException):
        return (f"the key of {where} is not the one in known_hosts: somebody may be in between; if you know "
                f"that the server was set up again: ssh-keygen -R {name_of(connection)}, then type the command again")
    if isinstance(error, AuthenticationException):
        return (f"{host} does not let {connection.user} in: {printable(str(error))}; check User and "
                f"IdentityFile for it in ~/.ssh/config, and try `ssh {host}`")
    if isinstance(error, socket.gaierror):
        return (f"there is no host {where}; check the name, or add `Host {host}` with HostName to "
                "~/.ssh/config")
    if isinstance(error, TimeoutError):
        return (f"{where} does not answer; check the network or VPN, and whether it needs a ProxyJump in "
                "~/.ssh/config")
    if isinstance(error, ProxyCommandFailure):
        return f"the ProxyCommand for {host} failed: {printable(str(error))}; try `ssh {host}`"
    if isinstance(error, ChannelException):
        return (f"a jump host does not reach {where}: {printable(str(error))}; check HostName and ProxyJump in "
                "~/.ssh/config")
    if isinstance(error, ConnectionError) or type(error).__name__ == "NoValidConnectionsError":
        return f"{where} takes no connection: {reason(error)}; check Port in ~/.ssh/config, and that sshd runs there"
    if isinstance(error, OSError):
        return f"{where} cannot be reached: {reason(error)}; check the network, and try `ssh {host}`"
    return f"no connection to {where}: {printable(str(error)) or type(error).__name__}; try `ssh {host}`"


def reason(error: BaseException) -> str:
    """Return the system's text for a failure."""
    number = getattr(error, "errno", None)
    several = getattr(error, "errors", None)
    if several:
        return reason(next(iter(several.values())))
    return os.strerror(number) if number else printable(str(error))


def name_of(connection: Any) -> str:
    """Return the name of the server in known_hosts, quoted for a shell."""
    return connection.host if connection.port == 22 else f"'[{connection.host}]:{connection.port}'"


def terminal() -> bool:
    """Return whether there is a terminal to ask on."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


@contextmanager
def restored_echo() -> Iterator[None]:
    """Restore the terminal's settings at the end: hidden input is shown again."""
    if not terminal():
        yield
        return
    with open("/dev/tty", "rb") as tty:
        before = termios.tcgetattr(tty)
        try:
            yield
        finally:
            termios.tcsetattr(tty, termios.TCSADRAIN, before)


def public_key(path: Path) -> str:
    """Return the public key next to a private one, as in its file; "" if there is none."""
    try:
        return (path.with_name(path.name + ".pub").read_text().split() + ["", ""])[1]
    except (OSError, UnicodeDecodeError):
        return ""


def ask(question: str, secret: bool = True) -> str:
    """Ask the user on the terminal, even if standard input is redirected. Raises AuthenticationException if there is
    no terminal."""
    if not terminal():
        raise AuthenticationException(f"it asks `{question.strip()}`, and there is no terminal to answer on")
    if secret:
        return getpass.getpass(question)
    with open("/dev/tty", "r+b", buffering=0) as tty:
        tty.write(question.encode())
        return tty.readline().decode(errors="replace").rstrip("\n")


class HostKeyPolicy(MissingHostKeyPolicy):  # type: ignore[misc]  # Paramiko has no types
    """Handles a server that is not in any file of known hosts according to StrictHostKeyChecking, which asks by
    default."""

    def __init__(self, checking: str, path: Path) -> None:
        self.checking = checking.lower()
        self.path = path

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """Accept the key and store it, or raise SSHException."""
        if self.checking not in ("no", "off", "accept-new"):
            digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
            what = f"{key.get_name()} SHA256:{digest}"
            if self.checking == "yes" or not terminal():
                raise SSHException(f"its key ({what}) is in no file of known hosts; compare it with the site's "
                                   f"and accept it with `ssh` once")
            answer = ask(f"{printable(hostname)} is not known yet. Its key is {what}.\n"
                         "Is it the site's (yes/no)? ", secret=False)
            if answer.strip().lower() != "yes":
                raise SSHException("its key was not accepted")
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = self.path.read_bytes() if self.path.exists() else b""
        with open(self.path, "ab") as file:
            file.write((b"\n" if text and not text.endswith(b"\n") else b"")
                       + f"{hostname} {key.get_name()} {key.get_base64()}\n".encode())


class Authentication(OpenSSHAuthStrategy):  # type: ignore[misc]  # Fabric has no types
    """Authenticates the user as OpenSSH does: tries the methods that the server allows, one after the other, until
    the server accepts the login. A server that wants two methods says so after the first."""

    def authenticate(self, transport: Any) -> list[str]:
        """Authenticate; return [] on success. Raises AuthenticationException."""
        try:
            return self._try_methods(transport)
        finally:
            self.close()

    def _try_methods(self, transport: Any) -> list[str]:
        transport.auth_timeout = THINKING
        tried: list[str] = []
        try:
            allowed = transport.auth_none(self.username)
        except BadAuthenticationType as error:
            allowed = error.allowed_types
        ways: tuple[tuple[str, Callable[[Any], list[str] | None]], ...] = (
            ("publickey", self._keys), ("keyboard-interactive", self._answers), ("password", self._password))
        done: list[str] = []
        for _ in range(MAX_METHODS):
            if not allowed:
                return []
            for name, way in ways:
                if name not in allowed or name in done:
                    continue
                tried.append(name)
                done.append(name)
                further = way(transport)
                if further is not None:  # the server has accepted it, and may request more
                    allowed, done = further, []
                    break
            else:
                raise AuthenticationException(f"it allows {', '.join(allowed)}, and accepted none of what was tried "
                                              f"({', '.join(tried) or 'nothing'})")
        raise AuthenticationException(f"it asks for more than {MAX_METHODS} proofs of identity")

    def _keys(self, transport: Any) -> list[str] | None:
        for key in self._all_keys():
            try:
                left: list[str] = transport.auth_publickey(self.username, key)
                return left
            except BadAuthenticationType:
                return None
            except AuthenticationException:
                if not transport.is_active():
                    raise
        return None

    def _all_keys(self) -> Iterator[Any]:
        """Yield the keys of the agent and those in files; the passphrase of a locked key is asked for only when it
        is needed."""
        named = self.ssh_config.get("identityfile")
        paths = [Path(name).expanduser() for name in named or [
            f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ed25519")]]
        public = {path: public_key(path) for path in paths}
        only = self.ssh_config.get("identitiesonly", "no") == "yes"
        for key in self.agent.get_keys():
            if not only or key.get_base64() in public.values():
                yield key
                paths = [path for path in paths if public[path] != key.get_base64()]
        for path in paths:
            try:
                yield PKey.from_path(path)
            except (TypeError, PasswordRequiredException):
                words = ask(f"Passphrase of {path}: ")
                try:
                    yield PKey.from_path(path, words.encode())
                except (ValueError, SSHException):
                    print(f"vrm: {path} was not unlocked", file=sys.stderr)
            except OSError:
                continue
            except (ValueError, SSHException) as error:
                print(f"vrm: {path} is not a key that can be used: {printable(str(error))}", file=sys.stderr)

    def _answers(self, transport: Any) -> list[str] | None:
        def answers(title: str, text: str, prompts: Sequence[tuple[str, bool]]) -> list[str]:
            for line in (title, text):
                if line.strip():
                    print(printable(line.strip()), file=sys.stderr)
            return [ask(printable(prompt), secret=not shown) for prompt, shown in prompts]

        with restored_echo():  # the questions come in another thread, which may be left at a prompt
            return self._again(transport, lambda: transport.auth_interactive(self.username, answers))

    def _password(self, transport: Any) -> list[str] | None:
        return self._again(transport, lambda: transport.auth_password(
            self.username, ask(f"Password of {self.username}: "), fallback=False))

    @staticmethod
    def _again(transport: Any, attempt: Callable[[], list[str]]) -> list[str] | None:
        """Retry after a mistake, as long as the server is connected and there is a terminal."""
        for left in reversed(range(MAX_ATTEMPTS)):
            try:
                return attempt()
            except BadAuthenticationType:
                return None
            except AuthenticationException:
                if not transport.is_active() or not terminal():
                    raise
                if left:
                    print("vrm: not accepted; try again", file=sys.stderr)
        return None
