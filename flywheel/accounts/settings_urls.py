from django.urls import URLPattern, URLResolver, path

from flywheel.accounts import views

app_name = "settings"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.settings_index, name="index"),
]
