from django.urls import URLPattern, URLResolver, path

from flywheel.evals import views

app_name = "evals"
# /p/<project>/evals/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("new/", views.new, name="new"),
    path("pair/", views.pair, name="pair"),
    path("<int:pk>/", views.run, name="run"),
    path("<int:pk>/live/", views.live, name="live"),
    path("<int:pk>/matrix/", views.matrix, name="matrix"),
    path("<int:pk>/cancel/", views.cancel, name="cancel"),
    path("<int:pk>/resume/", views.resume, name="resume"),
    path("<int:candidate>/against/<int:baseline>/", views.compare, name="compare"),
    path("<int:candidate>/against/<int:baseline>/tasks/<int:number>/", views.changed, name="changed"),
]
