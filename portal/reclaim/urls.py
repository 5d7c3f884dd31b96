from __future__ import annotations

from django.urls import path

from portal.reclaim import home_views, policy_views, views
from portal.reclaim.rebalancing import views as rebalancing

app_name = "reclaim"
AT = "reclaim-policies/"
ONE = f"{AT}<uuid:policy_id>/"
urlpatterns = [
    path("workspaces/<uuid:workspace_id>/keep/", views.keep_workspace, name="keep"),
    path("homes/archived/", home_views.archived, name="archived-homes"),
    path("homes/<int:home_id>/keep/", home_views.keep_home, name="keep-home"),
    path("homes/<int:home_id>/restore/", home_views.restore, name="restore-home"),
    path("homes/<int:home_id>/delete/", home_views.delete, name="delete-home"),
    path("rebalancing/", rebalancing.listing, name="rebalancing"),
    path("rebalancing/<uuid:proposal_id>/apply/", rebalancing.apply, name="apply-proposal"),
    path("rebalancing/<uuid:proposal_id>/dismiss/", rebalancing.dismiss, name="dismiss-proposal"),
    path(AT, policy_views.listing, name="policies"),
    path(f"{AT}new/", policy_views.new, name="new-policy"),
    path(f"{AT}preview/", policy_views.preview, name="preview-policy"),
    path(ONE, policy_views.detail, name="policy"),
    path(f"{ONE}edit/", policy_views.edit, name="edit-policy"),
    path(f"{ONE}delete/", policy_views.delete, name="delete-policy"),
    path(f"{ONE}versions/<int:number>/restore/", policy_views.restore, name="restore-policy"),
]
