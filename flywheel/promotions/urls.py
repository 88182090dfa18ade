from django.urls import URLPattern, URLResolver, path

from flywheel.promotions import suite_views, views

app_name = "promotions"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("propose/", views.propose, name="propose"),
    path("policy/", views.policy, name="policy"),
    path("candidates/<int:pk>/", views.candidate, name="candidate"),
    path("candidates/<int:pk>/approve/", views.approve, name="approve"),
    path("candidates/<int:pk>/reject/", views.decline, name="reject"),
    path("candidates/<int:pk>/sealed/", views.final, name="final"),
    path("candidates/<int:pk>/sealed/open/", views.open_sealed, name="open_sealed"),
    path("lineage/<str:trace_id>/", views.lineage, name="lineage"),
    path("agents/<slug:agent>/roll-back/", views.roll_back, name="roll_back"),
    path("agents/<slug:agent>/suites/", suite_views.of_agent, name="suites"),
    path("agents/<slug:agent>/suites/put/", suite_views.put, name="put_suite"),
    path("agents/<slug:agent>/suites/<slug:suite>/retire/", suite_views.retire, name="retire_suite"),
    path("agents/<slug:agent>/suites/<slug:suite>/run/", suite_views.run, name="run_suite"),
    path("beside/<int:candidate>/<int:baseline>/", suite_views.beside, name="suites_beside"),
    path("beside/<int:candidate>/<int:baseline>/run/", suite_views.run_beside, name="run_suites"),
    path("agents/<slug:agent>/first/<int:number>/", views.first, name="first"),
]
