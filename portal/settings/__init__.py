"""Settings of the portal, all from the environment; docs/settings.md lists the variables.

`parsing` reads the variables and `checks` validates them. `framework`, `rest` and `authentication` contain
settings of Django and its libraries; `site`, `vault`, `people`, `notices`, `scheduling` and `workspaces`
contain Berth's own settings. `gateway` is for the gateway process.
"""

from portal.settings.authentication import *  # noqa: F403
from portal.settings.framework import *  # noqa: F403
from portal.settings.notices import *  # noqa: F403
from portal.settings.people import *  # noqa: F403
from portal.settings.rest import *  # noqa: F403
from portal.settings.scheduling import *  # noqa: F403
from portal.settings.site import *  # noqa: F403
from portal.settings.vault import *  # noqa: F403
from portal.settings.workspaces import *  # noqa: F403
