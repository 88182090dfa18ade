from django.urls import URLPattern, URLResolver, path

from flywheel.environments import views

app_name = "environments"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
]
