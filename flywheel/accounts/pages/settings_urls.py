from django.urls import URLPattern, URLResolver, path

from flywheel.accounts.pages import notice_settings, price_views, providers, redaction, settings

app_name = "settings"
# /p/<project>/settings/
urlpatterns: list[URLPattern | URLResolver] = [
    path("", settings.settings_index, name="index"),
    path("members/", settings.add_member, name="add_member"),
    path("members/become-approver/", settings.become_approver, name="become_approver"),
    path("members/<int:pk>/", settings.set_roles, name="set_roles"),
    path("keys/", settings.keys_index, name="keys"),
    path("keys/make/", settings.make_key, name="make_key"),
    path("keys/<int:pk>/revoke/", settings.revoke_key, name="revoke_key"),
    path("gateway/", settings.gateway, name="gateway"),
    path("models/", providers.provider_index, name="providers"),
    path("models/<int:pk>/try/", providers.try_provider, name="try_provider"),
    path("models/<int:pk>/remove/", providers.remove_provider, name="remove_provider"),
    path("prices/", price_views.prices, name="prices"),
    path("prices/hour/", price_views.set_device_hour, name="set_device_hour"),
    path("prices/<int:pk>/remove/", price_views.end_price, name="end_price"),
    path("notices/", notice_settings.notice_settings, name="notices"),
    path("notices/<int:pk>/try/", notice_settings.try_notice_target, name="try_notice_target"),
    path("notices/<int:pk>/remove/", notice_settings.remove_notice_target, name="remove_notice_target"),
    path("notices/again/", notice_settings.send_notices_again, name="send_notices_again"),
    path("redaction/", redaction.policy, name="redaction"),
    path("redaction/try/", redaction.try_redaction, name="try_redaction"),
    path("audit/", settings.audit_log, name="audit"),
]
