"""Codes for errors about reservations, and for results of availability checks."""

from __future__ import annotations

from enum import StrEnum


class ReservationCode(StrEnum):
    """Errors about reservations, and results of availability checks."""

    BEYOND_QUOTA = "beyond_quota"
    BOOKED_BY_OTHERS = "booked_by_others"
    BOOKED_ALREADY = "booked_already"
    CANCELLED_ALREADY = "cancelled_already"
    CHOOSE_RESOURCE = "choose_resource"
    DENIAL_WITHOUT_NOTE = "denial_without_note"
    END_NOT_IN_FUTURE = "end_not_in_future"
    ENDS_TOO_LATE = "ends_too_late"
    FITS = "reservation_fits"
    MORE_THAN_SITE_HAS = "more_than_site_has"
    NOBODY_PERMITS_THEMSELF = "nobody_permits_themself"
    NO_SUCH_PERMISSION = "no_such_permission"
    ONLY_APPROVERS_PERMIT = "only_approvers_permit"
    NOTHING_TO_CANCEL = "nothing_to_cancel"
    NOT_RESERVABLE = "not_reservable"
    NO_SUCH_RESERVATION = "no_such_reservation"
    ONLY_LESS = "only_less"
    OVER = "reservation_over"
    RESERVE_NOTHING = "reserve_nothing"
    RESOURCES_COUNT = "resources_count"
    SITE_TOO_SMALL = "site_too_small"
    START_NOT_IN_FUTURE = "start_not_in_future"
    TIME_NOT_UNDERSTOOD = "time_not_understood"
    TIME_OVER = "time_over"
    TITLE_LENGTH = "title_length"
    TOO_SHORT = "reservation_too_short"
    WAS_CANCELLED = "reservation_was_cancelled"
    DELEGATE_OF_REQUESTER = "delegate_of_requester"
    NOBODY_DECIDES_OWN = "nobody_decides_own"
