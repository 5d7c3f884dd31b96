"""Fields that have got a better name. The old one is answered and taken beside it for as long as docs/api.md
promises, and is marked as deprecated in the document for programs.

Each room says which in a mapping of old names to new ones; columns keep the old.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from portal.common.api import StrictSerializer
from portal.common.errors import InvalidInput
from portal.common.reasons.codes import CommonCode
from portal.common.reasons.reason import Reason

Names = Mapping[str, str]
_UNKNOWN = object()


def takes_its_place(new: str) -> str:
    """What is said of the old name."""
    return f"As `{new}`, which takes its place."


def with_both(renamed: Names, document: Mapping[str, Any]) -> dict[str, Any]:
    """The document, in which what stands under an old name stands under the new one, too."""
    return {
        **document,
        **{new: document[old] for old, new in renamed.items() if old in document},
    }


class RenamedSerializer(StrictSerializer):
    """A body whose fields are taken by either name, the two with one `source`.

    Both with the same value are as one of them. Where they differ and one says what is so already
    (`context["current"]`, by old names), somebody has read both and changed the other: that one counts.
    Raises `InvalidInput` where they differ otherwise.
    """

    renamed: ClassVar[Names] = {}

    def to_internal_value(self, data: Any) -> Any:
        given = super().to_internal_value(data)
        for old, new in self.renamed.items():
            if old not in data or new not in data:
                continue
            said = {self._understood(name, data) for name in (old, new)}
            changed = said - {self._current(old)}
            if len(said) > 1 and len(changed) == 1:
                given[self.fields[new].source] = changed.pop()
            elif len(said) > 1:
                reason = Reason(CommonCode.NAMES_DIFFER, {"old": old, "new": new})
                # Inside another body it is named as in what Django REST framework refuses.
                where = f"{self.field_name}.{new}" if self.field_name else new
                raise InvalidInput(reason, errors={where: [reason]})
        return given

    def _current(self, old: str) -> Any:
        return self.context.get("current", {}).get(old, _UNKNOWN)

    def _understood(self, name: str, data: Mapping[str, Any]) -> Any:
        return self.fields[name].run_validation(data[name])
