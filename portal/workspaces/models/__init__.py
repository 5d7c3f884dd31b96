"""Models of workspaces and homes."""

from portal.workspaces.models.homes import ACTIVE_ARCHIVES as ACTIVE_ARCHIVES
from portal.workspaces.models.homes import ACTIVE_MOVES as ACTIVE_MOVES
from portal.workspaces.models.homes import EvacuationState as EvacuationState
from portal.workspaces.models.homes import HomeArchive as HomeArchive
from portal.workspaces.models.homes import HomeArchiveState as HomeArchiveState
from portal.workspaces.models.homes import HomeDeletion as HomeDeletion
from portal.workspaces.models.homes import HomeEvacuation as HomeEvacuation
from portal.workspaces.models.homes import HomeMove as HomeMove
from portal.workspaces.models.homes import HomeMoveState as HomeMoveState
from portal.workspaces.models.homes import HomePlace as HomePlace
from portal.workspaces.models.homes import HomeUsage as HomeUsage
from portal.workspaces.models.homes import LostHome as LostHome
from portal.workspaces.models.usage import UsageHour as UsageHour
from portal.workspaces.models.usage import UsageMinute as UsageMinute
from portal.workspaces.models.workspaces import PoolObservation as PoolObservation
from portal.workspaces.models.workspaces import Preemption as Preemption
from portal.workspaces.models.workspaces import QueueEntry as QueueEntry
from portal.workspaces.models.workspaces import StartSecrets as StartSecrets
from portal.workspaces.models.workspaces import Workspace as Workspace
from portal.workspaces.models.workspaces import WorkspaceQuerySet as WorkspaceQuerySet
from portal.workspaces.models.workspaces import WorkspaceStatus as WorkspaceStatus
from portal.workspaces.models.workspaces import origin_affixes as origin_affixes
