from django.urls import path

from portal.repositories import views

app_name = "repositories"
urlpatterns = [path("account/dotfiles/", views.dotfiles, name="dotfiles")]
