"""Settings for workspaces: software environments, home folders, and clones of repositories."""

from __future__ import annotations

from portal.settings.checks import check_minimum
from portal.settings.parsing import env, hours

HEARTBEAT_S = env.int("BERTH_HEARTBEAT_S", default=15)
# Limits of an environment build in seconds and MiB. Unused versions are deleted after this many days.
BERTH_ENVIRONMENT_BUILD_S = min(86_400, max(60, env.int("BERTH_ENVIRONMENT_BUILD_S", default=3600)))
BERTH_ENVIRONMENT_MAX_MIB = max(64, env.int("BERTH_ENVIRONMENT_MAX_MIB", default=20_480))
BERTH_ENVIRONMENT_KEEP_DAYS = max(0, env.int("BERTH_ENVIRONMENT_KEEP_DAYS", default=30))
# Omits the curated environment “Data science”, so that nothing is built after the first start.
BERTH_SKIP_DATA_SCIENCE = env.bool("BERTH_SKIP_DATA_SCIENCE", default=False)
# Whether a curated environment is built for the first workspace that needs it.
BERTH_BUILD_WHEN_ASKED = env.bool("BERTH_BUILD_WHEN_ASKED", default=True)
# Limit of a home folder (0: no limit), and how long workspaces can still use a home above its limit.
BERTH_HOME_LIMIT_MIB = env.int("BERTH_HOME_LIMIT_MIB", default=0)
BERTH_HOME_GRACE_S = env.int("BERTH_HOME_GRACE_S", default=600)
# Maximum size of a home that moves automatically when a workspace starts on another machine; 0: never.
BERTH_MOVE_HOME_LIMIT_MIB = env.int("BERTH_MOVE_HOME_LIMIT_MIB", default=10_240)
# Hours of the day (UTC) in which homes move away from nodes with a high home load; none: never.
BERTH_BALANCE_HOMES_HOURS = hours("BERTH_BALANCE_HOMES_HOURS")
check_minimum(
    0,
    BERTH_HOME_LIMIT_MIB=BERTH_HOME_LIMIT_MIB,
    BERTH_HOME_GRACE_S=BERTH_HOME_GRACE_S,
    BERTH_MOVE_HOME_LIMIT_MIB=BERTH_MOVE_HOME_LIMIT_MIB,
)
# Days without use after which a home folder is archived and emptied; further days after which an
# administrator may delete the archive (0: never); and the notice period for the user before both.
BERTH_HOME_ARCHIVE_DAYS = max(0, env.int("BERTH_HOME_ARCHIVE_DAYS", default=0))
BERTH_HOME_DELETE_DAYS = max(0, env.int("BERTH_HOME_DELETE_DAYS", default=0))
BERTH_HOME_NOTICE_DAYS = max(1, env.int("BERTH_HOME_NOTICE_DAYS", default=14))
# Maximum number of archives of a home folder; 0: none. Their total size is limited like that of a home.
BERTH_HOME_ARCHIVES = env.int("BERTH_HOME_ARCHIVES", default=5)
check_minimum(0, BERTH_HOME_ARCHIVES=BERTH_HOME_ARCHIVES)
# Time limits for cloning a repository at start, and for a dotfiles script.
BERTH_CLONE_TIMEOUT_S = env.int("BERTH_CLONE_TIMEOUT_S", default=900)
BERTH_DOTFILES_TIMEOUT_S = env.int("BERTH_DOTFILES_TIMEOUT_S", default=300)
check_minimum(
    1, BERTH_CLONE_TIMEOUT_S=BERTH_CLONE_TIMEOUT_S, BERTH_DOTFILES_TIMEOUT_S=BERTH_DOTFILES_TIMEOUT_S
)
