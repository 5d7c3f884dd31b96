"""Allowed names of secrets: environment variables that do not change how programs run.

A team's secrets reach the workspaces of all its members. Their names must not control what only the owner of
a workspace may decide: which program, library, configuration or server is used.
"""

from __future__ import annotations

import re

from provisioning.preloading import FIXED_AT_START, FIXED_NAMES

MAX_NAME = 64
NAME_PATTERN = rf"[A-Za-z_][A-Za-z0-9_]{{0,{MAX_NAME - 1}}}"
_NAME = re.compile(rf"{NAME_PATTERN}\Z")

RESERVED_PREFIXES = (
    *FIXED_AT_START,
    *("BERTH_", "BASH_", "CUDA_", "DYLD_", "GCONV_", "GIT_", "IPYTHON", "JPY_", "JUPYTER", "JVM_", "LESS"),
    *("NCCL_", "NPM_", "NVIDIA_", "PERL", "PIP_", "RUBY", "UV_", "VSCODE_", "XDG_"),
)
RESERVED = FIXED_NAMES | {
    *("ALL_PROXY", "BROWSER", "CDPATH", "CLASSPATH", "EDITOR", "ENV", "FTP_PROXY", "HOSTALIASES"),
    *("HOSTNAME", "HTTPS_PROXY", "HTTP_PROXY", "IFS", "INPUTRC", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"),
    *("LOCALDOMAIN", "LOCPATH", "LOGNAME", "LUA_INIT", "LUA_PATH", "MANPATH", "NLSPATH", "NODE_OPTIONS"),
    *("NODE_PATH", "NO_PROXY", "OLDPWD", "PAGER", "PROMPT_COMMAND", "PS1", "PS4", "PWD", "RES_OPTIONS"),
    *("SHELL", "SHELLOPTS", "SHLVL", "TERM", "TERMCAP", "TERMINFO", "TMOUT", "TMP", "TEMP", "TZ", "USER"),
    *("VIRTUAL_ENV", "VISUAL", "ZDOTDIR", "_", "_JAVA_OPTIONS"),
}


def is_well_formed(name: str) -> bool:
    """Return whether the name is a valid variable name of up to 64 characters."""
    return _NAME.match(name) is not None


def is_reserved(name: str) -> bool:
    """Return whether programs use the variable, regardless of case."""
    upper = name.upper()
    return upper in RESERVED or upper.startswith(RESERVED_PREFIXES)
