"""Questions of readers, and the section that must be among the first three results."""

from __future__ import annotations

import time
from typing import Any

import pytest

from portal.web.documents import search, words

QUESTIONS = (
    ("How do I give Anna two more GPUs until Friday?", "troubleshooting",
     "How do I grant somebody more GPUs for a limited time?"),
    ("Why is this GPU cordoned?", "troubleshooting", "Why is this GPU cordoned, failed or offline?"),
    ("Why does my workspace wait in the queue?", "troubleshooting",
     "Why does my workspace wait in the queue?"),
    ("Why was my notebook stopped?", "troubleshooting", "Why was my workspace, or notebook, stopped?"),
    ("Why did my kernel die?", "troubleshooting", "My kernel died, or a program was killed"),
    ("Where are my files when I delete the workspace?", "troubleshooting",
     "Where are my files when the workspace is stopped or deleted?"),
    ("How do I use PyTorch?", "troubleshooting", "How do I install a package, or use PyTorch or JAX?"),
    ("How do I start a notebook from a GitHub pipeline?", "ci", "GitHub Actions"),
    ("How do I restore a backup?", "backup", "Restore"),
    ("How do I roll back an upgrade?", "backup", "Roll back"),
    ("How do people sign in with Keycloak?", "sign-in", "Keycloak"),
    ("How do I add another machine?", "machines", "Add a machine"),
    ("How do I put nginx with TLS in front of it?", "tls", "TLS with nginx or Caddy"),
    ("What does the code no_node_large_enough mean?", "reason-codes", "no_node_large_enough"),
    ("How do I see GPU metrics in Grafana?", "monitoring", "Monitoring with Prometheus and Grafana"),
    ("Who loses work in a preemption?", "scheduling", "Preemption"),
    ("How do I invite a new user?", "people", "Inviting"),
    ("BERTH_HOME_LIMIT_MIB", "settings", "BERTH_HOME_LIMIT_MIB, BERTH_HOME_GRACE_S"),
)  # fmt: skip
FIRST = 3
LIMIT_S = 0.1


@pytest.mark.parametrize(("question", "name", "title"), QUESTIONS, ids=[each[0] for each in QUESTIONS])
def test_answer_is_among_the_first_results(question: str, name: str, title: str) -> None:
    found = [(each.name, each.title) for each in search.index().search(question)[:FIRST]]
    assert (name, title) in found


def test_search_is_fast() -> None:
    index = search.index()
    index.search("the first one loads the portal's addresses")
    for question, _, _ in QUESTIONS:
        began = time.process_time()
        index.search(question)
        assert time.process_time() - began < LIMIT_S, question


def test_excerpt_marks_terms_and_escapes_text() -> None:
    made = search.excerpt("x" * 300 + " the <b>queue</b> & workspaces wait there", {"queu", "workspac"})
    assert made == "… the &lt;b&gt;<mark>queue</mark>&lt;/b&gt; &amp; <mark>workspaces</mark> wait there"


@pytest.mark.parametrize(
    ("one", "other"),
    [("workspaces", "workspace"), ("stopped", "stop"), ("policies", "policy"), ("queued", "queue"),
     ("archived", "archive"), ("GPUs", "gpu"), ("user's", "users")],
)  # fmt: skip
def test_word_forms_have_the_same_term(one: str, other: str) -> None:
    assert words.terms(one) == words.terms(other)


def test_incomplete_word_matches_its_completions() -> None:
    assert {each.name for each in search.index().search("preemp")[:FIRST]} & {
        "scheduling",
        "quotas",
        "troubleshooting",
    }


@pytest.mark.parametrize("query", ["", "   ", "?!", "the", "\x00", "a" * 5000, "' OR 1=1 --", "日本"])
def test_unusual_queries_raise_no_error(query: str) -> None:
    assert isinstance(search.index().search(query), list)


@pytest.mark.django_db
def test_search_page_shows_results(as_user: Any, alice: Any) -> None:
    page = as_user(alice).get("/docs/search/", {"q": "Why is this GPU cordoned?"}).content.decode()
    assert 'href="/docs/troubleshooting/#why-is-this-gpu-cordoned-failed-or-offline"' in page
    assert "<mark>" in page
