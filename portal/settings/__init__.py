"""Settings of the portal, all from the environment; docs/settings.md lists the variables.

`parsing` reads them and `checks` has their errors. `framework`, `rest` and `authentication` are those of
Django and its libraries; `site`, `vault`, `people`, `notices`, `scheduling` and `workspaces` are those of
Berth. `gateway` is for the gateway process.
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
