from __future__ import annotations

from django.urls import path

from portal.web.home.views import home, new, overview, team

app_name = "home"
urlpatterns = [
    path("", home.home, name="home"),
    path("setup/hide/", home.hide_setup, name="hide-setup"),
    path("overview/", overview.overview, name="overview"),
    path("workspaces/new/", new.new, name="new"),
    path("teams/<slug:slug>/", team.team, name="team"),
    path("teams/<slug:slug>/use/", team.team_use, name="team-use"),
]
