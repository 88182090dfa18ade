"""Forms on the pages of this room."""

import uuid
from typing import Any

from django import forms
from django.contrib.auth.forms import PasswordChangeForm

from flywheel.accounts.access import SCOPE_NEEDS
from flywheel.accounts.models import NoticeEvent, NoticeTarget, Role, Scope
from flywheel.core.traces.call_prices import DEAREST

ROLE_HELP = {
    Role.VIEWER: "sees everything",
    Role.REVIEWER: "labels failures",
    Role.BUILDER: "and makes tasks, task sets, evals",
    Role.TRAINER: "and launches and stops training",
    Role.APPROVER: "labels; approves and rolls back promotions",
    Role.ADMIN: "all of it except approving; members, keys",
}
LIFETIMES = [("", "until it is revoked"), ("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "1 year")]


class Roles(forms.Form):
    roles = forms.MultipleChoiceField(
        choices=[(role.value, f"{role.label} – {ROLE_HELP[role]}") for role in Role],
        widget=forms.CheckboxSelectMultiple,
        required=False,
    )


class NewMember(Roles):
    username = forms.CharField(max_length=150, widget=forms.TextInput(attrs={"autocomplete": "off"}))

    field_order = ["username", "roles"]


class NewKey(forms.Form):
    name = forms.CharField(max_length=100, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    scopes = forms.MultipleChoiceField(choices=Scope.choices, widget=forms.CheckboxSelectMultiple)
    form = forms.UUIDField(widget=forms.HiddenInput, initial=uuid.uuid4)
    days = forms.TypedChoiceField(choices=LIFETIMES, coerce=int, empty_value=None, required=False)

    def __init__(self, *args: Any, permissions: frozenset[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        allowed = [scope for scope in Scope if SCOPE_NEEDS[scope] in permissions]
        scopes = self.fields["scopes"]
        assert isinstance(scopes, forms.MultipleChoiceField)
        scopes.choices = [(scope.value, f"{scope.value} – {scope.label}") for scope in allowed]


class Upstream(forms.Form):
    base_url = forms.CharField(
        max_length=500,
        required=False,
        label="Address",
        help_text="Any OpenAI-compatible server, without /chat/completions. Clear to turn off.",
        widget=forms.TextInput(attrs={"placeholder": "https://api.openai.com/v1", "autocomplete": "off"}),
    )
    api_key_env = forms.CharField(
        max_length=100,
        required=False,
        label="Its key",
        help_text="Name of a key under Settings › Models, or of an environment variable. Leave empty for none.",
        widget=forms.TextInput(attrs={"placeholder": "OPENAI_API_KEY", "autocomplete": "off"}),
    )


class NewPrice(forms.Form):
    model = forms.CharField(
        max_length=200,
        help_text="Its name, which also covers its dated snapshots, or the start of a name and a *.",
        widget=forms.TextInput(attrs={"placeholder": "gpt-5-mini", "autocomplete": "off", "spellcheck": "false"}),
    )
    price_in = forms.FloatField(min_value=0, max_value=DEAREST, label="Prompt", help_text="Dollars per million tokens.")
    price_cached = forms.FloatField(
        min_value=0,
        max_value=DEAREST,
        required=False,
        label="Prompt, from the cache",
        help_text="Leave empty if they cost the same.",
    )
    price_out = forms.FloatField(min_value=0, max_value=DEAREST, label="Answer")
    valid_from = forms.DateField(
        required=False,
        label="From",
        help_text="First day (UTC) it applies to. Leave empty for all.",
        widget=forms.DateInput(attrs={"type": "date"}),
    )
    source = forms.CharField(
        max_length=500,
        required=False,
        help_text="Source: a URL, or a note.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


class DeviceHour(forms.Form):
    usd_per_hour = forms.FloatField(
        required=False,
        label="Dollars per device-hour",
        help_text="Leave empty if unknown; costs then stay unknown.",
    )
    source = forms.CharField(max_length=500, required=False, widget=forms.TextInput(attrs={"autocomplete": "off"}))


class NewProviderKey(forms.Form):
    name = forms.CharField(
        max_length=100,
        help_text="Name used by endpoints and the gateway: capitals, ending in _API_KEY.",
        widget=forms.TextInput(attrs={"placeholder": "OPENAI_API_KEY", "autocomplete": "off"}),
    )
    base_url = forms.CharField(
        max_length=500,
        label="Server",
        help_text="The only server that gets it, without /chat/completions.",
        widget=forms.TextInput(attrs={"placeholder": "https://api.openai.com/v1", "autocomplete": "off"}),
    )
    secret = forms.CharField(
        max_length=4_000,
        label="Key",
        help_text="Encrypted, and never shown again. Enter it again to change it.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )


class NoticeTargetForm(forms.Form):
    name = forms.CharField(
        max_length=60,
        help_text="Saving under an existing name changes that target.",
        widget=forms.TextInput(attrs={"placeholder": "#agents", "autocomplete": "off"}),
    )
    kind = forms.ChoiceField(choices=NoticeTarget.Kind.choices)
    url = forms.CharField(
        max_length=2_000,
        required=False,
        label="Address",
        help_text="Encrypted, and never shown again. Leave empty to keep the address of an existing target.",
        widget=forms.TextInput(attrs={"placeholder": "https://hooks.slack.com/services/…", "autocomplete": "off"}),
    )
    events = forms.MultipleChoiceField(
        choices=[(event.value, event.label) for event in NoticeEvent], widget=forms.CheckboxSelectMultiple
    )


class MailedNotices(forms.Form):
    email = forms.EmailField(required=False, label="E-mail address")
    is_mailed_notices = forms.BooleanField(required=False, label="E-mail me my notices")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("is_mailed_notices") and not cleaned.get("email") and "email" not in self.errors:
            self.add_error("email", "Enter the address to send them to.")
        return cleaned


class ChangePassword(PasswordChangeForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["new_password1"].label = "New password"
        self.fields["new_password1"].help_text = "At least 10 characters, and not a common one."
        self.fields["new_password2"].label = "New password again"
        self.fields["new_password2"].help_text = ""
        self.fields["old_password"].widget.attrs.pop("autofocus", None)
