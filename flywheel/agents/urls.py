from django.urls import URLPattern, URLResolver, path

from flywheel.agents.pages import agents, downloads, hub_versions

app_name = "agents"
# /p/<project>/agents/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", agents.index, name="index"),
    path("new/", agents.new_agent, name="new"),
    # /fetches/<job's number>/
    path("fetches/<int:fetch>/", hub_versions.hub_version, name="hub_version"),
    path("fetches/<int:fetch>/live/", hub_versions.hub_version_live, name="hub_version_live"),
    path("fetches/<int:fetch>/cancel/", hub_versions.cancel_hub_version, name="cancel_hub_version"),
    path("fetches/<int:fetch>/resume/", hub_versions.resume_hub_version, name="resume_hub_version"),
    path("<slug:name>/", agents.agent, name="agent"),
    path("<slug:name>/versions/new/", agents.new_version, name="new_version"),
    path("<slug:name>/versions/difference/", agents.choose_difference, name="choose_difference"),
    path("<slug:name>/versions/<int:number>/against/<int:other>/", agents.difference, name="difference"),
    path("<slug:name>/versions/<int:number>/", agents.version, name="version"),
    path("<slug:name>/versions/<int:number>/downloads/", downloads.downloads, name="downloads"),
    path("<slug:name>/versions/<int:number>/merge/<slug:dtype>/", downloads.merge, name="merge"),
    path("<slug:name>/versions/<int:number>/download/<slug:part>.tar", downloads.download, name="download"),
]
