from __future__ import annotations

from django.urls import path

from portal.workspaces.home_files import archive_views, views

app_name = "home_files"
_HERE = "workspaces/<uuid:workspace_id>/files"
_ONE = f"{_HERE}/archives/<uuid:archive_id>"
urlpatterns = [
    path(f"{_HERE}/", views.file_list, name="list"),
    path(f"{_HERE}/download/", views.download, name="download"),
    path(f"{_HERE}/upload/", views.upload, name="upload"),
    path(f"{_HERE}/folder/", views.make_folder, name="folder"),
    path(f"{_HERE}/rename/", views.rename, name="rename"),
    path(f"{_HERE}/delete/", views.delete, name="delete"),
    path(f"{_HERE}/archives/", archive_views.archives, name="archives"),
    path(f"{_HERE}/archives/create/", archive_views.make, name="archive-create"),
    path(f"{_ONE}/restore/", archive_views.restore, name="archive-restore"),
    path(f"{_ONE}/delete/", archive_views.delete, name="archive-delete"),
    path(f"{_ONE}/cancel/", archive_views.cancel, name="archive-cancel"),
]
