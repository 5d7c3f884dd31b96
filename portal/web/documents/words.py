"""Words for the search: tokenisation, stems and synonyms."""

from __future__ import annotations

import re
from functools import lru_cache

WORD = re.compile(r"[A-Za-z0-9]+(?:[_.'’-][A-Za-z0-9]+)*")
STOP = frozenset(
    [
        "a", "an", "and", "another", "are", "as", "at", "be", "been", "but", "by", "can", "could", "did",
        "do", "does", "for", "from", "had", "has", "have", "he", "her", "his", "how", "i", "if", "in", "into",
        "is", "it", "its", "just", "me", "my", "no", "not", "of", "off", "on", "or", "our", "shall",
        "she", "should", "so", "some", "than", "that", "the", "their", "them", "then", "there", "these",
        "they", "this", "those", "to", "too", "until", "up", "was", "we", "were", "what", "when",
        "where", "which", "who", "whom", "why", "will", "with", "would", "you", "your",
    ]
)  # fmt: skip
SYNONYMS: dict[str, tuple[str, ...]] = {
    "account": ("user",),
    "add": ("join", "create"),
    "bill": ("cost", "price"),
    "broken": ("failed", "fault"),
    "cancel": ("delete", "end"),
    "crash": ("failed", "ended"),
    "delete": ("remove", "deleting"),
    "evicted": ("preemption", "preempted"),
    "extend": ("longer", "end"),
    "give": ("grant", "quota"),
    "https": ("tls",),
    "increase": ("more", "raise"),
    "install": ("packages",),
    "invite": ("inviting", "link"),
    "kicked": ("preemption", "preempted"),
    "killed": ("stopped", "preemption"),
    "kill": ("stop",),
    "library": ("package",),
    "log": ("logs",),
    "jupyter": ("notebook", "workspace"),
    "jupyterlab": ("notebook", "workspace"),
    "money": ("cost", "price"),
    "notebook": ("workspace",),
    "port": ("front", "door"),
    "pending": ("waits", "queued"),
    "postgres": ("postgresql",),
    "prometheus": ("metrics",),
    "slow": ("time", "latency"),
    "sso": ("sign-in", "oidc", "saml"),
    "ssl": ("tls",),
    "stuck": ("waits", "queued"),
    "temporarily": ("until", "days"),
    "upload": ("files",),
    "vm": ("machine",),
    "vscode": ("code-server",),
    "waiting": ("waits", "queue"),
}
"""Synonyms of words in a query."""


def stem(word: str) -> str:
    """Return the word without common English endings, so that `workspaces` finds `workspace`."""
    for ending, instead in (("'s", ""), ("’s", ""), ("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return _plain_end(word[: -len(ending)] + instead)
    keeps_s = word.endswith(("ss", "us", "is")) and word not in ("cpus", "gpus")
    if word.endswith("s") and len(word) > 3 and not keeps_s:
        word = word[:-1]
    return _plain_end(word)


def _plain_end(word: str) -> str:
    # `stopp` of `stopped` becomes `stop`, and `archive` matches `archiv` of `archived`.
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lse":
        word = word[:-1]
    return word[:-1] if len(word) > 4 and word.endswith("e") else word


def terms(text: str) -> list[str]:
    """Return the stems of a text. `BERTH_PORT` and `sign-in` give the whole word and its parts."""
    return [term for word in WORD.findall(text.lower()) for term in stems_of(word)]


@lru_cache(maxsize=65_536)
def stems_of(word: str) -> tuple[str, ...]:
    """Return the stem of a lower-case word, and of its parts if it has several."""
    parts = re.split(r"[_.-]", word)
    if len(parts) == 1:
        return (stem(word),)
    return (stem(word), *(stem(part) for part in parts if part and part not in STOP))


def query_stems(query: str) -> list[tuple[str, float]]:
    """Return the stems of a query with their weights. Synonyms have lower weights than typed words."""
    typed = [word for word in WORD.findall(query.lower()) if word not in STOP]
    weights: dict[str, float] = {}
    for word in typed or WORD.findall(query.lower()):
        for term in terms(word):
            weights[term] = max(weights.get(term, 0), 1.0)
        for other in SYNONYMS.get(word, ()):
            weights.setdefault(stem(other), 0.5)
    return list(weights.items())
