"""`berth node join`: creates keys, gets them signed, saves them, and starts the node."""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from provisioning.host import abilities, keys, membership, programs, running, status, unit
from provisioning.host import door as doors
from provisioning.host import token as tokens
from provisioning.host.door import Door, RequestRefused, ResponseLost
from provisioning.host.folder import NodeFolder
from provisioning.host.membership import JoinAnswer, Membership
from provisioning.host.token import JoinToken
from provisioning.service import home, instance_lock
from provisioning.service.console import LABEL_WIDTH, Console, Problem
from provisioning.service.files import write_file
from provisioning.service.notebook import Builder
from provisioning.version import VERSION

DEFAULT_PORT = 8646
CONNECTED_LIMIT_S = 45.0
POLL_INTERVAL_S = 0.5
ALREADY_JOINED = frozenset({"join_token_used", "node_name_taken", "machine_joined_already"})
SETTINGS = (
    "BERTH_HOMES_DIR", "BERTH_SANDBOX", "BERTH_EGRESS", "BERTH_EGRESS_ALLOW", "BERTH_MULTIUSER",
    "BERTH_MOUNTS", "BERTH_SPARES", "BERTH_NODE_UIDS", "BERTH_DISK_RESERVE_MIB", "BERTH_REVOKED_GRACE_S",
    "BERTH_NO_CONTACT_GRACE_S", "BERTH_NODE_PROGRAMS", "BERTH_GPU_SHARES",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """Command line options; an empty `name` means the machine's name, an empty `address` the sender's."""

    url: str
    token: str
    name: str = ""
    address: str = ""
    gateway_port: int = DEFAULT_PORT
    service: bool = True
    environment: bool = True
    rack: str = ""
    block: str = ""


class JoinCommand:
    """A run of `berth node join`."""

    def __init__(
        self, folder: NodeFolder, options: JoinOptions, environ: Mapping[str, str], console: Console
    ) -> None:
        self._folder = folder
        self._options = options
        self._environ = environ
        self._console = console

    def run(self) -> Membership:
        """Join with progress output, and return the node's identity. Raises `Problem`."""
        options = self._options
        url, token = tokens.check_url(options.url), tokens.parse(options.token)
        name = tokens.check_name(options.name or tokens.name_of(socket.gethostname()))
        tokens.check_location(options.rack, "--rack")
        tokens.check_location(options.block, "--block")
        home.check_platform()
        self._check_folder()
        running.prepare(self._folder)
        with instance_lock.hold(self._folder.run, refusal=self._busy):
            programs.find_caddy()
            running.check_port(options.gateway_port)
            self._print_capabilities()
            with self._console.step("Portal") as step:
                step.update("asking")
                authority = self._authority(url, token)
                step.update("joining")
                joined = self._join(url, token, name, authority)
                step.result = f"node {joined.name} of pool {joined.answer.pool}"
            self._save_settings()
            if options.environment:
                make_environment(self._folder, self._environ, self._console)
        self._start(joined)
        return joined

    def _check_folder(self) -> None:
        folder = self._folder
        if folder.state_file.exists():
            identity = membership.load(folder)
            raise Problem(
                f"This machine is already the node {identity.name} of {identity.answer.portal_url}.",
                "See `berth node status`. To leave, run `berth node leave`.",
            )
        if (folder.home / "secrets").exists():
            raise Problem(
                f"{folder.home} is the folder of a portal, which already has this machine as its node.",
                "Choose a separate folder for the node with --home.",
            )

    def _busy(self, _: dict[str, object]) -> Problem:
        return Problem(f"Another Berth command runs in {self._folder.home}.", "Wait until it ends.")

    def _print_capabilities(self) -> None:
        results = abilities.probe(self._folder, as_service=self._options.service and self._has_systemd())
        for ability in results:
            self._console.say(
                f"  {'✓' if ability.good else '!'} {ability.label:<{LABEL_WIDTH}} {ability.text}"
            )
        shared = {**self._environ, **programs.settings(self._folder)}.get("BERTH_MULTIUSER", "1") != "0"
        if shared and abilities.missing(results):
            self._console.say(
                "  ! Workspaces cannot start here until the missing parts are installed. For a single user: "
                f"BERTH_MULTIUSER=0 in {self._folder.settings}."
            )

    def _has_systemd(self) -> bool:
        return not isinstance(unit.find(self._environ), str)

    def _authority(self, url: str, token: JoinToken) -> str:
        authority, ahead_s = doors.fetch_authority(url)
        try:
            digest = keys.digest_of(authority)
        except ValueError:
            digest = ""
        if digest != token.authority:
            raise Problem(
                f"{url} is not the portal of this token: it has another authority. Nothing was sent.",
                "Copy the whole command from the pool's page. If that fails, check for interception.",
            )
        doors.check_clock(ahead_s)
        return authority

    def _join(self, url: str, token: JoinToken, name: str, authority: str) -> Membership:
        options, folder = self._options, self._folder
        new_keys, instance = keys.make(name), secrets.token_hex(16)
        machine_id = membership.machine_id(instance)
        lost_before = _was_answer_lost(folder, token)
        try:
            write_file(folder.pending, json.dumps({"token": token.id, "node": name}) + "\n")
        except OSError as error:
            raise _not_writable(folder, error) from error
        try:
            answer = Door(url, authority).join(
                {
                    "token": token.text,
                    "name": name,
                    "csr": new_keys.csr,
                    "signing_key": new_keys.signing_public,
                    "address": options.address,
                    "rack": options.rack,
                    "block": options.block,
                    "gateway_port": options.gateway_port,
                    "version": VERSION,
                    "clock": time.time(),
                    "machine_id": machine_id,
                    "instance": instance,
                }
            )
            keys.check(answer.certificate, new_keys.key, authority)
        except RequestRefused as refused:
            if lost_before and refused.code in ALREADY_JOINED:
                raise Problem(
                    f"The portal has already added this machine as {name}, but its answer was lost.",
                    f"Revoke and remove {name} on its pool's page, then join with a new token.",
                ) from refused
            folder.pending.unlink(missing_ok=True)
            raise
        except ResponseLost as lost:
            raise Problem(
                f"{lost.message} The portal may have added this machine as {name}.",
                "Run the same command again. If the token is already used, the command shows what to do.",
            ) from lost
        except ValueError as error:
            raise Problem(
                f"The portal's answer is not valid: {error}.",
                f"Revoke and remove {name} on its pool's page, then join with a new token.",
            ) from error
        except Problem:
            folder.pending.unlink(missing_ok=True)
            raise
        joined = Membership(
            answer=answer,
            key=new_keys.key,
            signing_key=new_keys.signing_key,
            gateway_port=options.gateway_port,
            machine_id=machine_id,
            instance=instance,
            version=VERSION,
            user=os.geteuid(),
        )
        self._save_membership(joined, answer)
        return joined

    def _save_membership(self, joined: Membership, answer: JoinAnswer) -> None:
        try:
            membership.save(self._folder, joined)
        except OSError as error:
            problem = _not_writable(self._folder, error)
            raise Problem(
                f"{problem.message} The portal has already added this machine as {answer.node}.",
                f"{problem.fix} Revoke and remove {answer.node} on its pool's page, then join again.",
            ) from error
        self._folder.pending.unlink(missing_ok=True)

    def _save_settings(self) -> None:
        """Save the settings of this call for the service; afterwards the operator maintains the file."""
        if self._folder.settings.exists():
            return
        lines = [f"{name}={self._environ[name]}" for name in SETTINGS if self._environ.get(name)]
        head = "# Variables of this node (docs/settings.md). After a change, restart its services."
        try:
            write_file(self._folder.settings, "\n".join((head, *lines, "")))
        except OSError as error:
            raise _not_writable(self._folder, error) from error

    def _start(self, joined: Membership) -> None:
        by_hand = f"Start it by hand: {unit.command(self._folder)}"
        if not self._options.service:
            self._console.say(f"  · {'Service':<{LABEL_WIDTH}} not created. {by_hand}")
            return
        service = unit.find(self._environ)
        if isinstance(service, str):
            self._console.say(f"  · {'Service':<{LABEL_WIDTH}} {service} {by_hand}")
            return
        with self._console.step("Service") as step:
            step.update("starting")
            service.install(self._folder, joined.name)
            step.update("waiting for the connection")
            step.result = (
                "connected" if self._connected() else "started, not connected yet: berth node status"
            )
        if service.user and not unit.lingers():
            self._console.say(f"  ! {unit.linger_hint()}")

    def _connected(self) -> bool:
        until = time.monotonic() + CONNECTED_LIMIT_S
        while time.monotonic() < until:
            if status.services_run(self._folder):
                return True
            time.sleep(POLL_INTERVAL_S)
        return False


def make_environment(folder: NodeFolder, environ: Mapping[str, str], console: Console) -> bool:
    """Create the notebook environment; return whether that succeeded, and print what to do if not."""
    with console.step("Notebook environment") as step:
        builder = Builder(folder.environments, folder.logs, environ)
        builder.start()
        try:
            step.result = builder.wait(step.update)
        except (Problem, OSError) as problem:
            step.mark = "!"
            step.result = f"not created: {problem} Later: berth node environment --home {folder.home}"
            return False
    return True


def _was_answer_lost(folder: NodeFolder, token: JoinToken) -> bool:
    """Return whether an earlier join with this token got no answer."""
    try:
        return bool(json.loads(folder.pending.read_text())["token"] == token.id)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _not_writable(folder: NodeFolder, error: OSError) -> Problem:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return Problem(f"The disk under {folder.home} is full.", "Free some space.")
    return Problem(
        f"{error.filename or folder.home} cannot be written ({error.strerror}).",
        "Make it writable for this user, or choose another folder with --home.",
    )
