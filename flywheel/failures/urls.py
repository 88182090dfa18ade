from django.urls import URLPattern, URLResolver, path

from flywheel.failures import views

app_name = "failures"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.index, name="index"),
    path("buckets/<slug:key>/", views.bucket, name="bucket"),
    path("queue/", views.open_queue, name="queue"),
    path("review/<str:trace_id>/", views.open_review, name="review"),
    path("review/<str:trace_id>/label/", views.label, name="label"),
    path("review/<str:trace_id>/undo/", views.take_back, name="undo"),
    path("review/<str:trace_id>/correction/", views.preview, name="correction"),
    path("review/<str:trace_id>/panel/", views.panel, name="panel"),
]
