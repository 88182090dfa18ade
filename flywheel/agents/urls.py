from django.urls import URLPattern, URLResolver, path

from flywheel.agents import views

app_name = "agents"
# /p/<project>/agents/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("new/", views.new_agent, name="new"),
    path("<slug:name>/", views.agent, name="agent"),
    path("<slug:name>/versions/new/", views.new_version, name="new_version"),
    path("<slug:name>/versions/<int:number>/", views.version, name="version"),
]
