"""What tests read of a page is what a browser shows."""

import pytest
from django.http import HttpResponse

from tests.pages import page_of


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("<p>\n  3 of\n  <b>4</b>\n</p>\n", "<p>3 of <b>4</b></p>"),
        ("<b>4</b>.", "<b>4</b>."),
        ("<b>4</b>\n.", "<b>4</b> ."),
        ("<td>\n<a>1</a>\n<a>2</a>\n</td>", "<td><a>1</a> <a>2</a></td>"),
        ('<a\n  class="x"\n  href="?q=a%20b&amp;c"\n  >1</a>', '<a class="x" href="?q=a%20b&amp;c">1</a>'),
        ('<b title="a\n  b > c"  >1</b >', '<b title="a\n  b > c">1</b>'),
        ("<ul><li>1 &lt; 2 &#x27;\n</li>\n<li>2</li></ul>", "<ul><li>1 &lt; 2 &#x27;</li><li>2</li></ul>"),
        ("<div>\n<pre>\n 1\n  <b>2</b> </pre>\n</div>", "<div><pre>\n 1\n  <b>2</b> </pre></div>"),
        ("<p>\n<textarea>\n 1\n</textarea>\n2\n</p>", "<p><textarea>\n 1\n</textarea> 2</p>"),
        ("1\N{NO-BREAK SPACE} <br>\n2", "1\N{NO-BREAK SPACE}<br>2"),
    ],
)
def test_white_space_is_what_a_browser_shows(sent: str, read: str) -> None:
    assert page_of(HttpResponse(sent)) == read
