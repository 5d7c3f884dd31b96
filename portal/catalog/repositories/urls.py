from django.urls import path

from portal.catalog.repositories import views

app_name = "repositories"
urlpatterns = [path("account/dotfiles/", views.dotfiles, name="dotfiles")]
