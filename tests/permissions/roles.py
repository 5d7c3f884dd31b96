"""Writes docs/roles.md: `python -m tests.permissions.roles > docs/roles.md`.

The page describes `table.py`, which `test_matrix.py` compares with the portal for every URL.
"""

from __future__ import annotations

import re

from tests.permissions.table import ACTORS, TABLE, rows

INTRO = """\
# Who may what

Of REST, below `/api/v1/`: made from the table against which every page and endpoint is tested for each of
these people (`python -m tests.permissions.roles > docs/roles.md`). How roles are given is in
[people.md](people.md).

| column | who |
|---|---|
| outsider | signed in, in another team |
| viewer | a viewer of the team |
| member | another member of the team |
| its user | the member whose workspace, token, notice or request it is |
| owner | an owner of that team |
| auditor | the site role; with a session: tokens of theirs only read |
| operator | the site role; in no team |
| administrator | the site role; in no team |
| scope | what a token needs besides, where it is a program that asks |

**yes**: it is done. **no**: refused (403). **–**: there is no such thing for them (404). **not this**: they
may, and were refused for what the test asks (400, 409). Without an account the answer is 401, but for what is
marked *public*. Pages call the same services, so they let do the same.
"""
COLUMNS = ("outsider", "viewer", "member", "its user", "owner", "auditor", "operator", "administrator")


def document() -> str:
    """The page. REST only: a page that refuses answers with a message and 302, like a page that accepts."""
    parts, found, title = [INTRO.rstrip()], iter(rows()), ""
    for line in TABLE.splitlines():
        if line.startswith("# ---"):
            title = line.strip("#- ").removeprefix("REST: ")
        elif line and not line.startswith("#"):
            row = next(found)
            if not row.in_api:
                continue
            if title:
                head = _line("", *COLUMNS, "scope")
                parts += ["", f"## {title[0].upper()}{title[1:]}", head, "|---" * (len(COLUMNS) + 2) + "|"]
                title = ""
            words = [_word(outcome) for outcome in row.outcomes[1:]]
            public = " *public*" if min(row.outcomes[0]) < 300 else ""
            route = re.sub(r"<\w+:(\w+)>", r"{\1}", row.route.removeprefix("api/v1/"))
            scope = f"`{row.scope}`" if ":" in row.scope else ""
            parts.append(_line(f"{row.method} `{route}`{public}", *words, scope))
    return "\n".join(parts) + "\n"


def _word(outcome: frozenset[int]) -> str:
    """The meaning of a status for the user."""
    match min(outcome):
        case 403:
            return "no"
        case 404:
            return "–"
        case 400 | 409:
            return "not this"
        case status if status < 400:
            return "yes"
        case _:
            return "no"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


assert len(COLUMNS) == len(ACTORS) - 1
if __name__ == "__main__":
    print(document(), end="")
