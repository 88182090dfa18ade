from django.urls import URLPattern, URLResolver, path

from flywheel.agents import views

app_name = "agents"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
]
