"""The package index of this node: its URLs, hosts and folders.

It is a setting of the node that no message changes: `BERTH_NODE_PACKAGE_INDEX`, several separated by spaces,
in order of priority; by default the configuration of uv or pip on this machine. `BERTH_NODE_PACKAGE_HOSTS`
names further hosts that builds may reach, such as the file host of an index. Timeout and retries are also
settings of the node.
"""

from __future__ import annotations

import configparser
import functools
import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from provisioning.drivers.local.packages import CERTIFICATES
from provisioning.egress_proxy import host_rule
from provisioning.environment_builds.failures import BuildError
from provisioning.environment_messages import BuildFailure

PATIENCE = {
    "UV_HTTP_TIMEOUT": ("BERTH_NODE_PACKAGE_TIMEOUT_S", "60"),
    "UV_HTTP_RETRIES": ("BERTH_NODE_PACKAGE_RETRIES", "3"),
}
"""uv's variables for timeout and retries → the node's settings and their defaults."""


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """Package indexes; `urls` in order of priority; `links` are folders or pages of files to install from.

    With `merged` the best version of all indexes is used, otherwise the one of the first index that has the
    package. `hosts` are the hosts that a build may reach, in the format of the egress proxy; `folders` are
    mounted; `networks` are addresses of those hosts in private networks; `patience` are uv's variables for
    timeouts.
    """

    urls: tuple[str, ...]
    links: tuple[str, ...] = ()
    more_hosts: tuple[str, ...] = ()
    certificates: str = ""
    merged: bool = False
    patience: tuple[tuple[str, str], ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        hosts: dict[str, None] = {}
        for url in (*self.urls, *self.links):
            parts = urlsplit(url)
            if parts.scheme in ("http", "https") and parts.hostname:
                hosts[parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"] = None
                hosts.update(dict.fromkeys(_hosts_of_files(parts.hostname)))
        return (*hosts, *(host for host in self.more_hosts if host not in hosts))

    @property
    def folders(self) -> tuple[str, ...]:
        folders: dict[str, None] = {}
        for url in (*self.urls, *self.links):
            if (path := _path_of(url)) and Path(path).exists():
                # Index pages may link to files beside the index, as in the usual layout.
                parent = str(Path(path).parent)
                folders[parent if url in self.urls and parent.count("/") > 1 else path] = None
        return tuple(folders)

    def networks(self) -> tuple[str, ...]:
        """Return private addresses of the configured hosts, since an index is often in a private network."""
        networks: dict[str, None] = {}
        for host in self.hosts:
            name, _, port = host.partition(":")
            if name.startswith("*"):
                continue
            try:
                entries = socket.getaddrinfo(name, int(port or 443), type=socket.SOCK_STREAM)
            except (OSError, ValueError):
                continue
            for entry in entries:
                address = ipaddress.ip_address(str(entry[4][0]).partition("%")[0])
                if address.is_private and not address.is_loopback and not address.is_link_local:
                    networks[str(address)] = None
        return tuple(networks)

    def environ(self) -> dict[str, str]:
        """Return uv's variables. Code of packages that are built from source can read passwords in them."""
        # uv queries its default index last.
        variables = {"UV_DEFAULT_INDEX": self.urls[-1], **dict(self.patience)}
        if self.urls[1:]:
            variables["UV_INDEX"] = " ".join(self.urls[:-1])
            variables["UV_INDEX_STRATEGY"] = "unsafe-best-match" if self.merged else "first-index"
        if self.links:
            variables["UV_FIND_LINKS"] = " ".join(self.links)
        if self.certificates:
            variables["SSL_CERT_FILE"] = self.certificates
        return variables


def configured_index(environ: Mapping[str, str] | None = None) -> PackageIndex:
    """Return the index configured on this node. Raises `BuildError` for an invalid setting."""
    environ = os.environ if environ is None else environ
    pip = _pip_settings(environ)
    links = _words(environ.get("UV_FIND_LINKS") or pip.get("find-links", ""))
    merged = False
    if listed := _words(environ.get("BERTH_NODE_PACKAGE_INDEX", "")):
        urls = listed
    elif uv := environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or environ.get("UV_INDEX"):
        extra = environ.get("UV_INDEX") or environ.get("UV_EXTRA_INDEX_URL") or ""
        last = _default_index()[0] if uv == environ.get("UV_INDEX") else uv
        urls = [*(url.partition("=")[2] if _is_named(url) else url for url in _words(extra)), last]
    else:
        urls = [*_words(pip.get("extra-index-url", "")), pip.get("index-url") or _default_index()[0]]
        merged = True
    hosts = _words(environ.get("BERTH_NODE_PACKAGE_HOSTS", "").replace(",", " "))
    for host in hosts:
        try:
            host_rule(host)
        except ValueError as error:
            raise _setting_error(f"BERTH_NODE_PACKAGE_HOSTS: {error}") from None
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "file"):
            raise _setting_error(f"The package index {_mask_password(url)} is not a valid URL")
    configured = environ.get("SSL_CERT_FILE") or pip.get("cert", "")
    certificates = next((path for path in (configured, *CERTIFICATES) if path and Path(path).is_file()), "")
    patience = tuple(
        (name, _number(environ.get(setting, ""), default)) for name, (setting, default) in PATIENCE.items()
    )
    return PackageIndex(tuple(urls), tuple(links), tuple(hosts), certificates, merged, patience)


def _number(text: str, default: str) -> str:
    return text if text.isascii() and text.isdecimal() else default


@functools.cache
def _default_index() -> tuple[str, str]:
    """Return the URL of pip's default index, and the host of its files. Raises `BuildError`."""
    try:
        # Optional, and slow to import.
        from pip._internal.models.index import PyPI
    except ImportError:
        raise _setting_error(
            "No package index is set, and this node has no pip to read a default from"
        ) from None
    return str(PyPI.simple_url), str(PyPI.file_storage_domain)


def _hosts_of_files(host: str) -> tuple[str, ...]:
    """Return the file hosts of an index, if they are known and different."""
    try:
        url, files = _default_index()
    except BuildError:
        return ()
    return (files,) if urlsplit(url).hostname == host else ()


def _is_named(entry: str) -> bool:
    """Return whether the word is uv's `name=address`."""
    return "=" in entry and "://" not in entry.partition("=")[0]


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return pip's configuration with pip's precedence: global to local files, then variables."""
    home = Path(environ.get("HOME") or "/")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        config / "pip/pip.conf",
    ]
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        files = []
    elif chosen:
        files.append(Path(chosen))
    parser = configparser.RawConfigParser()
    settings: dict[str, str] = {}
    for file in files:
        try:
            parser.read(file)
        except (configparser.Error, UnicodeDecodeError, OSError):
            continue
    for section in ("global", "install"):
        if parser.has_section(section):
            settings.update({key.replace("_", "-"): " ".join(v.split()) for key, v in parser.items(section)})
    for key in ("index-url", "extra-index-url", "find-links", "cert"):
        if value := environ.get(f"PIP_{key.upper().replace('-', '_')}"):
            settings[key] = value
    return settings


def _words(text: str) -> list[str]:
    return text.split()


def _path_of(url: str) -> str:
    """Return the folder of a `file:` URL or a path, otherwise an empty string."""
    if url.startswith("/"):
        return url
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else ""


def _mask_password(url: str) -> str:
    return url.rpartition("@")[2] if "@" in url else url


def _setting_error(problem: str) -> BuildError:
    return BuildError(BuildFailure.INDEX_UNREACHABLE, f"{problem}. Correct the node's settings.")
